"""The options of `dsv41 plan`: what each may be, and which leave others without effect."""

from __future__ import annotations

import re
import tomllib
from argparse import Namespace
from typing import Any

from dsv41 import fleet
from dsv41.errors import UsageError

# the grammar of references that podman and docker share: host or host:port, folders, name, tag.
# Both accept a tag beside a digest and go by the digest alone, so it may stand here
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_TAG = r"\w[\w.-]{0,127}"
IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::{_TAG})?@sha256:[0-9a-f]{{64}}", re.ASCII
)
# options that another one leaves without effect
_FOR_A_PLAN = ("fleet", "set", "tree", "tp", "eager", "text_only", "image", "reserve_gib", "port")
_IGNORED = {
    "example": ("why", "check", "state_dir", "api_key_file", *_FOR_A_PLAN),
    "diff": ("why", "check"),
    "format": ("json", "why"),
    "draw": ("json", "why"),
}
_NOT_LOCAL = ("tree", "reserve_gib")
_FOR_A_FLEET = ("image",)


def refuse_ignored(args: Namespace) -> None:
    """UsageError D107 for an option that would change nothing."""
    for shown, others in _IGNORED.items():
        for other in others:
            if _given(args, shown) and _given(args, other):
                raise UsageError(
                    "D107",
                    f"{_flag(other)} has no effect beside {_flag(shown)}.",
                    fix=f"leave out {_flag(other)} or {_flag(shown)}",
                )


def refuse_for_local(args: Namespace) -> None:
    """UsageError D107 for an option that profile local has not, or has on a fleet alone."""
    for option in (*_NOT_LOCAL, *(() if args.fleet else _FOR_A_FLEET)):
        if _given(args, option):
            raise UsageError(
                "D107",
                f"{_flag(option)} has no effect on profile {args.profile}, whose engine is local.",
                fix=f"leave out {_flag(option)}, or take another profile with --profile",
            )


def _given(args: Namespace, option: str) -> bool:
    value = getattr(args, option)
    return value is not None and value is not False and value != []


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")


def image(text: str) -> str:
    """An image by its digest; UsageError D107 without one."""
    if not IMAGE.fullmatch(text):
        raise UsageError(
            "D107",
            f"--image is {text!r}; an image is HOST/NAME or NAME, then @sha256: and 64 hex digits.",
            fix="give the digest that `docker images --digests` shows: --image NAME@sha256:...",
        )
    return text


def value(setting: str, text: str) -> Any:
    """A value as TOML has it; a bare word is a string."""
    if not text:
        raise UsageError(
            "D107",
            f"--set {setting} is not KNOB=VALUE.",
            fix=f"give --set {setting}VALUE"
            if setting.endswith("=")
            else f"give --set {setting}=VALUE",
        )
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def port(number: int) -> int:
    """A TCP port; UsageError D003."""
    if not 1 <= number <= 65535:
        raise UsageError(
            "D003", f"--port is {number}; a port is 1 to 65535.", fix="give --port 1024 to 65535"
        )
    return number


def reserve(gib: float) -> float:
    """The memory of other programs, in GiB, in the bounds of a fleet file's; UsageError D101."""
    return fleet.gib(gib, of="--reserve-gib", fix=f"give --reserve-gib 0 to {fleet.GIB_LIMIT}")
