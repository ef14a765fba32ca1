"""Download a file and accept it only by its SHA-256: `python download.py URL HEX OUT`."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

ATTEMPTS = 5
TIMEOUT = 60.0  # seconds without a byte
CHUNK = 1 << 20

# from a byte offset to the answer that begins there
Opener = Callable[[int], http.client.HTTPResponse]


class Refused(Exception):
    """Bytes that are not the wanted ones, or none; the text begins with its code."""


def download(opener: Opener, file: BinaryIO, *, what: str, source: str) -> None:
    """Write all bytes, in several goes where the connection breaks off; Refused D183."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(min(2.0**attempt, 10) / 10)
        try:
            problem = _go_on(opener, file)
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
            if error.code < 500 and error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        if not problem:
            return
    raise Refused(f"D183 {source} does not give {what}: {problem}.")


def _go_on(opener: Opener, file: BinaryIO) -> str:
    """Read on from where the file ends; what is missing in words, or nothing.

    A body that is cut off ends without an exception, so its length is compared.
    """
    with opener(file.tell()) as answer:
        if file.tell() and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.seek(0)  # the server starts again
            file.truncate()
        stated, before = answer.headers.get("Content-Length"), file.tell()
        shutil.copyfileobj(answer, file, CHUNK)
    got = file.tell() - before
    if stated is not None and got != int(stated):
        return f"{got} of {stated} bytes came"
    return ""


def check(path: Path, digest: str, *, source: str) -> None:
    """Refused D183 unless the file has the digest (`sha256:HEX`)."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    if f"sha256:{found.hexdigest()}" != digest:
        size = path.stat().st_size
        raise Refused(
            f"D183 {source} gave {size} bytes with SHA-256 {found.hexdigest()}; expected {digest}."
        )


def open_url(url: str, *, offset: int = 0) -> http.client.HTTPResponse:
    """The answer for a URL from a byte on."""
    request = urllib.request.Request(url)  # noqa: S310 - the operator's own mirror
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    return answer


def main() -> int:
    """Do it."""
    url, sha256, out = sys.argv[1:]
    try:
        with Path(out).open("wb") as file:
            download(lambda offset: open_url(url, offset=offset), file, what=sha256, source=url)
        check(Path(out), f"sha256:{sha256}", source=url)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
