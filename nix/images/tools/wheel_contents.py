"""What wheels hold, read from the ends of their files: a few kilobytes of a wheel of 400 MB.

The list of members and METADATA stand at known places of a zip, so ranges are enough. Nothing here
is checked by a hash: whoever builds a layer compares every member with RECORD and refuses a path
that two wheels bring. This is to know it before 4 GB are fetched.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import ssl
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from typing import Any

AT_ONCE = 8  # connections
PIECE = 1 << 16  # bytes a request
TIMEOUT = 60.0  # seconds without a byte


class Remote(io.RawIOBase):
    """A file behind an address that answers ranges, read where it is looked at."""

    def __init__(self, url: str, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte."""
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        """The byte that is read next."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or what is left of the file; OSError where the range is not given."""
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        span = f"bytes={self._at}-{self._at + wanted - 1}"
        request = urllib.request.Request(self._url, headers={"Range": span})  # noqa: S310
        with _opener().open(request, timeout=TIMEOUT) as answer:
            data = answer.read(wanted)
        if len(data) != wanted:
            raise OSError(f"{self._url} gave {len(data)} bytes of {span}")
        buffer[:wanted] = data
        self._at += wanted
        return wanted


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    # one for all requests: reading the certificates again takes 0.1 s each
    secure = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    return urllib.request.build_opener(secure)


def of(
    wheels: list[dict[str, Any]], addresses: Mapping[str, str], *, roots: Iterable[str]
) -> dict[str, Any]:
    """`requires`: Requires-Dist of each root; `twice`: paths that more than one wheel brings."""
    wanted = {_plain(name) for name in roots}

    def look(wheel: dict[str, Any]) -> tuple[list[str], list[str]]:
        return _look(addresses[wheel["file"]], wheel["size"])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(zip(wheels, pool.map(look, wheels), strict=True))
    return {
        "requires": {w["name"]: required for w, (_, required) in seen if w["name"] in wanted},
        "files": sum(len(paths) for _, (paths, _) in seen),
        "twice": twice({wheel["name"]: paths for wheel, (paths, _) in seen}),
    }


def _look(url: str, size: int) -> tuple[list[str], list[str]]:
    """Where the files of a wheel go, and its Requires-Dist lines."""
    source = io.BufferedReader(Remote(url, size), PIECE)
    with zipfile.ZipFile(source) as archive:
        names = [member.filename for member in archive.infolist() if not member.is_dir()]
        (name,) = (n for n in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    return [placed(n) for n in names], metadata.get_all("Requires-Dist") or []


def placed(member: str) -> str:
    """Where a member goes: below site-packages, or `bin/...` and the like below the prefix.

    Those of the .data folder are spread (binary distribution format): purelib and platlib are
    site-packages; a leading `../` marks the others, which are not below it.
    """
    found = re.fullmatch(r"[^/]+\.data/([^/]+)/(.+)", member)
    if found is None:
        return member
    scheme, rest = found.groups()
    return {"purelib": rest, "platlib": rest, "scripts": f"../bin/{rest}"}.get(scheme, f"../{rest}")


def twice(paths: Mapping[str, list[str]]) -> list[dict[str, Any]]:
    """The paths with more than one owner, each with its owners."""
    owners = defaultdict(set)
    pairs = (zip(itertools.repeat(name), listed) for name, listed in paths.items())
    for name, path in itertools.chain.from_iterable(pairs):
        owners[path].add(name)
    return [
        {"path": path, "owners": sorted(names)}
        for path, names in sorted(owners.items())
        if len(names) > 1
    ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
