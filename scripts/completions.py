"""Write shell completions of the command: `python scripts/completions.py SHARE`.

They are made from the one parser, so a flag cannot be forgotten, and they start no Python: a Tab
answers at once. Each shell finds its file below SHARE by itself.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsv41 import profile
from dsv41.cli.parser import build
from dsv41.engines.trees import TREES

FILES = {
    "bash": "bash-completion/completions/dsv41",
    "zsh": "zsh/site-functions/_dsv41",
    "fish": "fish/vendor_completions.d/dsv41.fish",
}
PATH = "a path"
# what the parser cannot list, because a path is allowed as well or the list is another room's
VALUES = {
    "--profile": (*profile.names(), PATH),
    "--tree": tuple(TREES),
    "--example": profile.names(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A command or a flag; `values` is None for a flag that takes none."""

    text: str
    says: str
    values: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one can be on the command line: after `path`, with what may follow."""

    path: str
    words: tuple[Word, ...]
    paths: bool

    def commands(self) -> tuple[Word, ...]:
        """The commands that may follow."""
        return tuple(word for word in self.words if not word.text.startswith("-"))

    def flags(self) -> tuple[Word, ...]:
        """The flags that may follow."""
        return tuple(word for word in self.words if word.text.startswith("-"))


def places(parser: argparse.ArgumentParser, path: str) -> Iterator[Place]:
    """Every command of a parser, itself first."""
    words: list[Word] = []
    inner: dict[str, argparse.ArgumentParser] = {}
    paths = False
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            inner = action.choices
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            words += [Word(text=name, says=_short(told.get(name, ""))) for name in inner]
        elif action.option_strings:
            words += _flags(action)
        else:
            paths = paths or action.type is Path
    yield Place(path=path, words=tuple(words), paths=paths)
    for name, command in inner.items():
        yield from places(command, f"{path} {name}")


def _flags(action: argparse.Action) -> Iterator[Word]:
    # a default path is the builder's own home
    default = "its own" if isinstance(action.default, Path) else str(action.default)
    says = _short((action.help or "").replace("%(default)s", default))
    for text in action.option_strings:
        values: tuple[str, ...] | None = None
        if action.nargs != 0:
            listed = tuple(action.choices or VALUES.get(text, ()))
            values = listed or ((PATH,) if action.type is Path else ())
        yield Word(text=text, says=says, values=values)


def _short(says: str) -> str:
    return says.partition(" [")[0].rstrip(".")


BASH = """\
# dsv41: completion for bash, made by scripts/completions.py
_dsv41_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
# flags from the first dash on, before it commands
_dsv41_either() { case $cur in -*) _dsv41_words "$1" ;; *) _dsv41_words "$2" ;; esac; }
_dsv41_paths() {
  mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
  compopt -o filenames 2> /dev/null
}
_dsv41() {
  local at=dsv41 word cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  COMPREPLY=()
"""


def bash(found: list[Place]) -> Iterator[str]:
    """A completion for bash."""
    yield from BASH.splitlines()
    yield '  for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do'
    yield '    case "$at $word" in'
    for path in (f"{p.path} {c.text}" for p in found for c in p.commands()):
        yield f'      "{path}") at="{path}" ;;'
    yield "    esac"
    yield "  done"
    yield '  case "$at $prev" in'
    for place, flag in ((p, f) for p in found for f in p.flags() if f.values is not None):
        yield f'    "{place.path} {flag.text}") {_bash_reply(flag.values or ())}return ;;'
    yield "  esac"
    yield '  case "$at" in'
    for place in found:
        yield f'    "{place.path}") {_bash_place(place)};;'
    yield "  esac"
    yield "}"
    yield "complete -F _dsv41 dsv41"


def _bash_place(place: Place) -> str:
    flags = " ".join(word.text for word in place.flags())
    commands = " ".join(word.text for word in place.commands())
    if not commands and not place.paths:
        commands = flags
    return f"_dsv41_either '{flags}' '{commands}'; " + ("_dsv41_paths; " if place.paths else "")


def _bash_reply(values: tuple[str, ...]) -> str:
    words = " ".join(value for value in values if value != PATH)
    reply = f"_dsv41_words '{words}'; " if words else ""
    return reply + ("_dsv41_paths; " if PATH in values else "")


def zsh(found: list[Place]) -> Iterator[str]:
    """A completion for zsh."""
    yield "#compdef dsv41"
    yield "# made by scripts/completions.py"
    yield "local at=dsv41 word"
    yield "local -a found"
    yield 'for word in "${(@)words[2,CURRENT-1]}"; do'
    yield '  case "$at $word" in'
    for path in (f"{p.path} {c.text}" for p in found for c in p.commands()):
        yield f'    "{path}") at="{path}" ;;'
    yield "  esac"
    yield "done"
    yield 'case "$at ${words[CURRENT-1]}" in'
    for place, flag in ((p, f) for p in found for f in p.flags() if f.values is not None):
        values = [value for value in flag.values or () if value != PATH]
        add = f"compadd -- {shlex.join(values)};" if values else ""
        add += " _files;" if PATH in (flag.values or ()) else ""
        yield f'  "{place.path} {flag.text}") {add} return ;;'
    yield "esac"
    yield 'case "$at" in'
    for place in found:
        told = " ".join(shlex.quote(f"{word.text}:{word.says}") for word in place.words)
        files = " _files;" if place.paths else ""
        yield f"""  "{place.path}") found=({told}); _describe 'dsv41' found;{files} ;;"""
    yield "esac"


def fish(found: list[Place]) -> Iterator[str]:
    """A completion for fish."""
    yield "# dsv41: completion for fish, made by scripts/completions.py"
    yield "function __dsv41_at"
    yield "  set -l at dsv41"
    yield "  for word in (commandline -opc)[2..]"
    yield '    switch "$at $word"'
    for path in (f"{p.path} {c.text}" for p in found for c in p.commands()):
        yield f"      case '{path}'"
        yield f"        set at '{path}'"
    yield "    end"
    yield "  end"
    yield "  echo $at"
    yield "end"
    yield "complete -c dsv41 -f"
    for place in found:
        here = f"complete -c dsv41 -n 'test (__dsv41_at) = \"{place.path}\"'"
        for word in place.commands():
            yield f"{here} -a {word.text} -d {shlex.quote(word.says)}"
        for flag in place.flags():
            yield f"{here} {_fish_flag(flag)} -d {shlex.quote(flag.says)}"
        if place.paths:
            yield f"{here} -F"


def _fish_flag(flag: Word) -> str:
    name = f"-l {flag.text[2:]}" if flag.text.startswith("--") else f"-s {flag.text[1:]}"
    if flag.values is None:
        return name
    words = " ".join(value for value in flag.values if value != PATH)
    how = "-rF" if PATH in flag.values else "-x"
    return f"{name} {how}" + (f" -a '{words}'" if words else "")


def main(share: Path) -> None:
    """Write the three files."""
    found = list(places(build(), "dsv41"))
    for shell, write in (("bash", bash), ("zsh", zsh), ("fish", fish)):
        path = share / FILES[shell]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(write(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
