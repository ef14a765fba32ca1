"""A captured engine log as lines: control codes undone, ranks found, the last boot cut out.

Any text is a log: binary junk, cut lines and lines of other programs pass through unharmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_LINE = 65_536  # SGLang echoes its arguments in one line of 16 KiB
QUOTE = 160  # how much of a line a finding shows

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# what a serving engine writes every second, and nothing can be told from: nine lines of ten
_CHATTER = re.compile(
    r"\] (?:Decode|Prefill) batch,|INFO: +\d+\.\d+\.\d+\.\d+:\d+ - \"|Avg prompt throughput:"
)
_BREAK = re.compile(r"\r\n|\r|\n")
# SGLang "[2026-09-11 23:34:12 TP0 EP0] ", vLLM "(Worker_TP0 pid=83) ", a merged log's "rank 1 | "
_RANK = re.compile(
    r"^\[[^\]]{0,60}?\bTP(\d{1,3})\b|^\(Worker[^)]{0,20}?TP(\d{1,3})|^rank ?(\d{1,3})\b"
)
_MARKS = (
    (
        "sglang",
        re.compile(r"server_args=|sglang|\bTP\d+ EP\d+\]|max_total_num_tokens=|DSV4 memory"),
    ),
    ("vllm", re.compile(r"vllm|vLLM|EngineCore|\(APIServer pid=|GPU KV cache size")),
    ("local", re.compile(r"dsv41\.local|loaded rows and weights in")),
)
_KEY = re.compile(r"(api[-_]?key['\"]?[\s:=]{1,3})[^\s,}]+", re.IGNORECASE)
_BOOT = re.compile(r"server_args=|non-default args:|vLLM API server version")
_OVER = re.compile(
    r"The server is fired up|Application shutdown complete|scheduler died|Received sigquit"
    r"|Dummy health check server started|EngineCore failed|Application startup complete"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a log; `rank` is the tensor-parallel rank that wrote it, where it says so."""

    number: int
    rank: int | None
    text: str

    def quote(self) -> str:
        """The line as a finding shows it: its beginning, with its number."""
        text = _KEY.sub(r"\1[redacted]", self.text.strip())
        return f"line {self.number}: {text[:QUOTE]}{'…' if len(text) > QUOTE else ''}"


def read(text: str) -> tuple[Line, ...]:
    """The lines that say something; a progress bar's rewrites count as lines of their own."""
    parts = enumerate(_BREAK.split(text), start=1)
    lines = (
        (n, _CONTROL.sub("", part)[:LONGEST_LINE]) for n, part in parts if not _CHATTER.search(part)
    )
    return tuple(Line(number=n, rank=_rank(line), text=line) for n, line in lines if line.strip())


def _rank(line: str) -> int | None:
    found = _RANK.match(line)
    return int(next(g for g in found.groups() if g)) if found else None


def last_boot(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines from the last start on, when the start before it had come to an end.

    The logs of several ranks in one file each have a start; those belong to one boot.
    """
    cut, over = 0, False
    for place, line in enumerate(lines):
        if over and _BOOT.search(line.text):
            cut, over = place, False
        over = over or bool(_OVER.search(line.text))
    return lines[cut:]


def engine_of(lines: Iterable[Line]) -> str | None:
    """Which engine wrote the log: the one with the most marked lines; None when none is marked."""
    counts = dict.fromkeys((name for name, _ in _MARKS), 0)
    for line in lines:
        for name, mark in _MARKS:
            counts[name] += bool(mark.search(line.text))
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else None
