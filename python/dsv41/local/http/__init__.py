"""The OpenAI-compatible service: requests, prompts, answers, keys and metrics."""
