"""The changes to vLLM, one file each."""
