"""Serve DeepSeek-V4.1-Flash on three or four DGX Sparks from declared, pinned configuration."""

__version__ = "0.1.0"
