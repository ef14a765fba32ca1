"""How the server is set up: names, limits, keys, and the guards as the environment sets them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv41.guards.loop import LoopConfig
from dsv41.switches import read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dsv41.local.http.keys import Keys

MODEL = "dsv41-fixture"
ALIASES = ("DeepSeek-V4.1-Flash", "deepseek-ai/DeepSeek-V4.1-Flash")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guards:
    """The guards on requests and answers: output limit in tokens, loop stop, default effort."""

    max_new_tokens: int = 32768
    loop: LoopConfig = field(default_factory=LoopConfig)
    effort: int = 75

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Guards:
        """Read the switches; UsageError D074 when one has a value that must not be guessed at."""
        loop = LoopConfig(
            abort=read(environ, "loop_abort"),
            ngram=read(environ, "loop_ngram"),
            ngram_max=read(environ, "loop_ngram_max"),
            repeats=read(environ, "loop_repeats"),
            identical=read(environ, "loop_identical"),
            line_repeats=read(environ, "loop_line_repeats"),
            line_min=read(environ, "loop_line_min"),
        )
        return cls(
            max_new_tokens=read(environ, "max_new_tokens"),
            loop=loop,
            effort=read(environ, "reasoning_effort"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the server needs besides an engine.

    tokenizer: path of tokenizer.json. context: tokens that prompt and answer may have together.
    guards: None reads the process environment. temperature, top_p: for requests that name none;
    the fixture's fitted answers are greedy. ranks: of the engine behind. service: its name in
    /ready, by which whoever started it knows it from another one. labels: further labels of
    dsv41_build_info. keepalive: seconds of silence after which a stream gets a comment.
    """

    tokenizer: Path
    context: int
    model: str = MODEL
    aliases: tuple[str, ...] = ALIASES
    keys: Keys | None = None
    guards: Guards | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    ranks: int = 1
    service: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    body_bytes: int = 4 * 1024 * 1024  # the context is 4,096 tokens; larger ones hold up the ranks
    keepalive: float = 10.0

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use for the model."""
        return (self.model, *self.aliases)
