"""The names of the profiles that ship with dsv41, and what a person may have meant by another."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path

from dsv41.errors import UsageError


@cache
def names() -> list[str]:
    """The profiles that ship with dsv41."""
    folder = files("dsv41.profiles")
    return sorted(
        p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")
    )


def shipped_text(name: str) -> str:
    """The file of a profile that ships with dsv41."""
    return files("dsv41.profiles").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def unknown(name: str) -> UsageError:
    """UsageError D093: the file of that name where one lies here, else the nearest name."""
    known = names()
    near = f"./{name}.toml" if _is_file(f"{name}.toml") else _nearest(name, known)
    return UsageError(
        "D093",
        f"There is no profile {name!r}; there are {', '.join(known)}, and files like ./mine.toml.",
        fix=f"take {near or 'one of ' + ', '.join(known)}",
    )


def _nearest(name: str, known: list[str]) -> str:
    return next(iter(get_close_matches(name.lower(), known, n=1)), "")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False
