"""Requests on their way through the model: scheduling, sampling and the step loop."""
