"""Proof that only rings were built: the lines of a patched NCCL at NCCL_DEBUG=INFO.

On a ring of cables stock NCCL connects the ring and then dies building a tree to the opposite node
(user report P22). Without INFO lines the log proves nothing either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsv41.diagnose.expect import Expect
from dsv41.diagnose.log import Line
from dsv41.finding import Finding

_RINGS = re.compile(r"Connected all rings")
_TREE_OFF = re.compile(
    r"Tree transport setup disabled by|SWITCHLESS: skipping ncclTransportTreeConnect"
)
_PAT_OFF = re.compile(
    r"(?i:pat) transport (?:setup )?disabled by|SWITCHLESS: skipping .{0,40}PatConnect"
)
_INFO = re.compile(r"NCCL INFO")


def judge_ring(lines: tuple[Line, ...], expect: Expect, *, ready: bool) -> Iterator[Finding]:
    """D338 for a profile that needs a ring, once the rings are connected."""
    if not expect.needs_ring or not _seen(_RINGS, lines):
        return
    tree, pat = _seen(_TREE_OFF, lines), _seen(_PAT_OFF, lines)
    if tree and pat:
        yield Finding(code="D338", level="ok", says="NCCL built rings only.")
    elif _seen(_INFO, lines) or not ready:
        missing = " and ".join(name for name, off in (("tree", tree), ("PAT", pat)) if not off)
        yield Finding(
            code="D338",
            level="fail",
            says=f"The rings are connected, but NCCL does not say that {missing} is off: it is "
            "not the "
            "patched library, or NCCL_SWITCHLESS_RING_ONLY is not set.",
            fix="use the image of the profile on every node; strings libnccl.so.2 | grep "
            "SWITCHLESS_RING_ONLY",
        )


def _seen(pattern: re.Pattern[str], lines: tuple[Line, ...]) -> bool:
    return any(pattern.search(line.text) for line in lines)
