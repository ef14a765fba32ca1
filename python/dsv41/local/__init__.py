"""The CPU engine: the same architecture, tiny, on any machine."""
