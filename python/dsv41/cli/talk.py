"""What the command says: data to stdout, talk to stderr, color only where it is wanted."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from dsv41.errors import Error

# a child's log line may carry terminal control codes; they must not reach our terminal
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST_LINE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Talk:
    """The two streams of a command."""

    data: TextIO
    words: TextIO
    as_json: bool
    color: bool

    @classmethod
    def to_terminal(cls, *, as_json: bool) -> Talk:
        """Stdout and stderr; NO_COLOR and a stderr that is no terminal turn color off."""
        color = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        return cls(data=sys.stdout, words=sys.stderr, as_json=as_json, color=color)

    def say(self, line: str) -> None:
        """A line for the person at the terminal."""
        print(line, file=self.words, flush=True)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Show that something goes on: a spinner with the elapsed time, or a plain line."""
        if not self.words.isatty():
            self.say(what)
            yield
            return
        from rich.console import Console  # noqa: PLC0415 - 68 ms that only a terminal pays
        from rich.progress import (  # noqa: PLC0415
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        console = Console(file=self.words, no_color=not self.color)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(what)
            yield

    @contextmanager
    def board(self) -> Iterator[Board]:
        """Lines that change in place on a terminal; elsewhere each change is a line."""
        if not self.words.isatty():
            yield Board(talk=self)
            return
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        console = Console(file=self.words, no_color=not self.color)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield Board(talk=self, live=live)

    def log(self, line: str) -> None:
        """A line of another program's log, without its control codes."""
        print(_CONTROL.sub("", line.rstrip("\n"))[:_LONGEST_LINE], file=self.words, flush=True)

    def put(self, text: str) -> None:
        """A line of data."""
        print(text, file=self.data, flush=True)

    def document(self, schema: str, **fields: Any) -> None:
        """One JSON document with its schema."""
        self.put(json.dumps({"schema": f"dsv41.{schema}/1", **fields}, ensure_ascii=False))

    def error(self, error: Error) -> None:
        """An error: code, sentence, and the step that mends it; the words also without a reader."""
        try:
            if self.as_json:
                self.document("error", code=error.code, says=error.says, fix=error.fix)
        finally:
            self._words_of(error)

    def _words_of(self, error: Error) -> None:
        code = f"\x1b[1;31m{error.code}\x1b[0m" if self.color else error.code
        self.say(f"{code} {error.says}")
        if error.fix:
            self.say(f"  fix: {error.fix}")
        self.say(f"  more: dsv41 explain {error.code}")


@dataclass(kw_only=True, slots=True)
class Board:
    """Lines in fixed places: `show` gets what each says, and the same with the time beside it."""

    talk: Talk
    live: Any = None
    shown: dict[int, str] = field(default_factory=dict)

    def show(self, says: Sequence[str], timed: Sequence[str]) -> None:
        """Draw all lines anew on a terminal; elsewhere say those that changed."""
        if self.live is not None:
            from rich.text import Text  # noqa: PLC0415

            self.live.update(Text("\n".join(timed)))
            return
        for place, line in enumerate(says):
            if self.shown.get(place) != line:
                self.shown[place] = line
                self.talk.say(line)
