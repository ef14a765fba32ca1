"""What `status` shows of a service in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# enough of a log's end to find a line that tells something behind a minute's statistics
TAIL = 50
_COUNTS = re.compile(r"\bengram layer=\d+ rank=\d+ of \d+: ")
_RANK = re.compile(r"^rank \d+: ")


def headline(found: Mapping[str, Any]) -> str:
    """The status, its URL while anybody may ask there, and what it says beside that."""
    status, says = found["status"], found["says"]
    words = [status, "" if status == "stopped" else found["url"], "" if says == status else says]
    return "  ".join(word for word in words if word)


def counts(line: str) -> bool:
    """Whether a line has the statistics of the rows, which come every minute and tell no state."""
    return _COUNTS.search(line) is not None


def last_said(lines: Sequence[str]) -> str:
    """The last line of a rank's log that tells how it stands, without the rank's own number."""
    telling = (line for line in reversed(lines) if line.strip() and not counts(line))
    return _RANK.sub("", next(telling, ""))
