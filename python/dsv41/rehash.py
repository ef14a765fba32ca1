"""Fetch what the pins name and hash it again; the network's side of `pins`.

A source is fetched once, to a file that is removed again. Its bytes are compared with the pinned
SHA-256; an input of the flake is unpacked as well, and hashed by nix, as nix does for a locked
input of a forge: the archive without its one top folder.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from dsv41.errors import CheckFailed, Error, Unreachable, UsageError
from dsv41.pins import Pin

PATIENCE = 60.0  # seconds without a byte
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """What came of a pin: `ok`, `filled` (nar_hash was not known) or `fail` with its error."""

    name: str
    status: str
    code: str | None = None
    says: str = ""
    nar_hash: str | None = None


def verify(
    pins: Iterable[Pin], *, mirror: str | None = None, say: Callable[[str], None]
) -> Iterator[Hashed]:
    """Fetch and hash each pin. `mirror` is a URL below which `host/path` of every URL is found.

    Raises UsageError D178 before anything is fetched when an input is among the pins and nix is
    not on PATH, and Unreachable D177 at the first host that does not answer.
    """
    chosen = tuple(pins)
    if any(pin.is_input for pin in chosen) and shutil.which("nix-hash") is None:
        raise UsageError(
            "D178",
            "The hash of a flake input is computed by nix, and nix-hash is not on PATH.",
            fix="run it where nix is installed: nix run .#pins-verify",
        )
    for pin in chosen:
        say(f"fetching {pin.name}")
        yield _hashed(pin, mirror)


def _hashed(pin: Pin, mirror: str | None) -> Hashed:
    with tempfile.TemporaryDirectory(prefix="dsv41-pins-") as folder:
        try:
            archive = Path(folder) / "download"
            _compare(pin, "SHA-256", pin.sha256, fetch(_url(pin, mirror), archive))
            if not pin.is_input:
                return Hashed(name=pin.name, status="ok")
            nar_hash = tree_hash(archive, Path(folder) / "tree")
            _compare(pin, "narHash", pin.nar_hash, nar_hash)
        except CheckFailed as error:
            return Hashed(name=pin.name, status="fail", code=error.code, says=error.says)
    status = "ok" if pin.nar_hash else "filled"
    return Hashed(name=pin.name, status=status, nar_hash=nar_hash)


def _url(pin: Pin, mirror: str | None) -> str:
    return pin.url if mirror is None else f"{mirror.rstrip('/')}/{pin.url.removeprefix('https://')}"


def _compare(pin: Pin, kind: str, expected: str | None, found: str) -> None:
    if expected is not None and found != expected:
        raise CheckFailed("D175", f"{pin.url} has the {kind} {found}; pinned is {expected}.")


def fetch(url: str, target: Path) -> str:
    """Write what a URL serves to a file; its SHA-256 in hex.

    Raises CheckFailed D176 for an answer that is an error or ends early, Unreachable D177 when
    nobody answers.
    """
    digest, received = hashlib.sha256(), 0
    with _answer(url) as answer, target.open("wb") as file:
        # a body that ends early is no error of read(n): the length tells
        wanted = answer.headers.get("Content-Length")
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
    if wanted is not None and received != int(wanted):
        raise CheckFailed("D176", f"{url} ended after {received} of {wanted} bytes.")
    return digest.hexdigest()


@contextmanager
def _answer(url: str) -> Iterator[HTTPResponse]:
    request = urllib.request.Request(url, headers={"User-Agent": "dsv41"})  # noqa: S310 - of a pin
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            yield answer
    except urllib.error.HTTPError as error:
        error.close()
        raise CheckFailed("D176", f"{url} answers {error.code} {error.reason}.") from error
    except (HTTPException, ConnectionResetError) as error:
        raise CheckFailed("D176", f"{url} ended early: {error}.") from error
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise Unreachable(
            "D177",
            f"{url} cannot be fetched: {reason}.",
            fix="run it on a machine with network, or give --mirror URL",
        ) from error


def tree_hash(archive: Path, folder: Path) -> str:
    """The narHash (SRI) of an archive's one top folder.

    CheckFailed D176 when the archive cannot be unpacked, or has not one folder alone at its top, as
    every archive of a forge has: nix then takes the whole for the tree, and it was no such archive.
    """
    folder.mkdir()
    unpack = ["tar", "-xf", str(archive), "-C", str(folder)]
    done = subprocess.run(unpack, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed("D176", f"The archive cannot be unpacked: {done.stderr.strip()[-500:]}.")
    tops = sorted(folder.iterdir())
    if len(tops) != 1 or tops[0].is_symlink() or not tops[0].is_dir():
        names = ", ".join(top.name for top in tops[:5]) or "nothing"
        raise CheckFailed("D176", f"The archive has {names} at its top; expected one folder.")
    command = ["nix-hash", "--type", "sha256", "--sri", str(tops[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Error("D178", f"nix-hash failed: {done.stderr.strip()[-500:]}.")
    return done.stdout.strip()
