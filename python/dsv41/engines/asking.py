"""How each engine is asked whether it is ready, and with which prompts it is warmed up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """Of one engine.

    Attributes:
        ready: path of the endpoint that answers 200 when requests are served.
        names_service: whether that answer names the Plan's service.
        words: lengths of the warm-up prompts; the recipe sends four lengths (MIA).
        boot: seconds that a start may take; the first one may tune kernels for 36 min.
        usual: the same in words.
    """

    ready: str
    names_service: bool
    words: tuple[int, ...]
    boot: float
    usual: str


ASKING: Mapping[str, Asking] = {
    "local": Asking(
        ready="/ready", names_service=True, words=(12, 200), boot=180.0, usual="usually 10 to 40 s"
    ),
    "sglang": Asking(
        ready="/health",  # generates a token
        names_service=False,
        words=(12, 200, 900, 3600),
        boot=3600.0,
        usual="usually 12 to 13 min",
    ),
    "vllm": Asking(
        ready="/health",
        names_service=False,
        words=(12, 200, 900, 3600),
        boot=3600.0,
        usual="usually about 8 min",
    ),
}
