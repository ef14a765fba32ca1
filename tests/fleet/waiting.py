"""Wait for something to become true, or say what did not."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], *, seconds: float, every: float = 0.1) -> float:
    """Wait until `true()` is; how long it took. An assertion when it is not within the time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"not true within {seconds:g} s"
        time.sleep(every)
    return time.monotonic() - began
