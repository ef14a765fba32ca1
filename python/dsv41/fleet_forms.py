"""The form of each value of a fleet file that goes into a command, a variable or a file's name.

ssh(1) takes a destination that begins with a dash for an option, and NCCL reads `^` and `,` in the
name of an interface: what is refused here never gets there.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_HOST_NAME = r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._+@-]*"
_SCOPED = r"[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?"  # IPv6, with its interface if need be
_SSH = re.compile(
    rf"({_USER}@)?({_HOST_NAME}|{_SCOPED})"
    rf"|ssh://({_USER}@)?({_HOST_NAME}|\[{_SCOPED}\])(:[0-9]{{1,5}})?/?"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a host name of Linux has up to 64
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")  # IFNAMSIZ is 16 with its end
_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}(:[0-9]{1,3})?")  # NCCL takes a port as well
_GIDS = 256  # sgid_index of libibverbs' ibv_global_route is one byte


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What a value must look like: a test, and the same in words."""

    fits: Callable[[str], bool]
    allowed: str


def faults(field: str, value: object) -> Iterator[tuple[str, object, str]]:
    """What of a field's value has another form: its place in a list, itself, what is allowed."""
    form = FORMS.get(field)
    if form is None:
        return
    listed = isinstance(value, tuple)
    for place, item in enumerate(value if isinstance(value, tuple) else (value,)):
        if not form.fits(str(item)):
            yield (f"[{place}]" if listed else ""), item, form.allowed


def _like(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_host(text: str) -> bool:
    """A host name has a letter: 10.0.0 and 10.0.0.256 are addresses that are wrong."""
    named = re.fullmatch(_HOST_NAME, text) and re.search("[A-Za-z]", text)
    return bool(named) or _ip(text) is not None


def _is_reached(text: str) -> bool:
    """A wizard once wrote 127.0.0.1 as the head's address (user report P26)."""
    found = _ip(text)
    if found is None:
        return _is_host(text)  # the resolver of the node has the last word
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _listens(text: str) -> bool:
    """A word without a dot is more often a slip than a name that the head resolves."""
    return _ip(text) is not None or text == "localhost" or ("." in text and _is_host(text))


def _has_prefix(text: str) -> bool:
    try:
        network = ipaddress.ip_interface(text).network
    except ValueError:
        return False
    return "/" in text and network.prefixlen < network.max_prefixlen


FORMS: Mapping[str, Form] = {
    "name": Form(
        fits=_like(_NAME),
        allowed="letters, digits, dots, dashes and underscores, first a letter or a digit, "
        "64 at most",
    ),
    "ssh": Form(fits=_like(_SSH), allowed="local, user@host, host or ssh://user@host:port"),
    "address": Form(
        fits=_is_reached, allowed="an address that the other nodes reach, or a host name"
    ),
    "nfs_server": Form(fits=_is_host, allowed="an address or a host name"),
    "api_host": Form(
        fits=_listens,
        allowed="an address of the head, 0.0.0.0 for all, localhost, or a host name with its "
        "domain",
    ),
    "hca": Form(fits=_like(_DEVICE), allowed="the name of an RDMA device, like rocep1s0f0"),
    "fabric": Form(
        fits=_has_prefix, allowed="an address with the prefix of its subnet, like 10.0.22.1/24"
    ),
    "socket_ifname": Form(
        fits=_like(_INTERFACE), allowed="the name of one interface, like enP7s7, 15 letters at most"
    ),
    "gid_index": Form(
        fits=lambda text: text.isdecimal() and int(text) < _GIDS, allowed=f"0 to {_GIDS - 1}"
    ),
}
