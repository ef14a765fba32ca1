"""Fetch an object of an OCI registry by its digest, and accept nothing else.

    python registry.py REFERENCE KIND DIGEST OUT     KIND is manifests or blobs

REFERENCE is HOST[:PORT]/REPOSITORY, or http://HOST... for a registry without TLS. Folders named in
DSV41_BLOBS (separated by ":", each an OCI layout or a folder of files named by their hex) come
first, so that a machine without network can build from what another has brought.
Protocol: OCI distribution-spec 1.0; authentication by the 401 answer's WWW-Authenticate.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import BinaryIO

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ATTEMPTS = 5
TIMEOUT = 60.0
CHUNK = 1 << 20


class Refused(Exception):
    """Bytes that are not the wanted ones, or none; the text begins with its code."""


class Registry:
    """One repository of a registry."""

    def __init__(self, reference: str) -> None:
        scheme, separator, rest = reference.rpartition("://")
        host, _, self.repository = rest.partition("/")
        # the one registry whose name is not its address (docker's own convention)
        host = "registry-1.docker.io" if host == "docker.io" else host
        self._url = f"{scheme}{separator}{host}" if separator else f"https://{host}"
        self.reference = reference
        self._token: str | None = None

    def open(self, kind: str, name: str, *, offset: int = 0) -> http.client.HTTPResponse:
        """The answer for an object; asks for a token once when the registry wants one."""
        url = f"{self._url}/v2/{self.repository}/{kind}/{name}"
        request = urllib.request.Request(url)  # noqa: S310 - the reference is the operator's own
        request.add_header("Accept", ", ".join(MANIFEST_TYPES) if kind == "manifests" else "*/*")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self._token:
            # not for the host that a blob is redirected to: CDNs answer 400 to a foreign token
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.UNAUTHORIZED or self._token:
                raise
            self._token = self._ask_token(error.headers.get("WWW-Authenticate", ""))
            return self.open(kind, name, offset=offset)
        if not isinstance(answer, http.client.HTTPResponse):
            raise Refused(f"D183 {self.reference} is not spoken to by HTTP.")
        return answer

    def forget(self) -> bool:
        """Forget the token; whether there was one."""
        had, self._token = self._token is not None, None
        return had

    def _ask_token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.startswith("Bearer ") or "realm" not in fields:
            raise Refused(f"D183 {self.reference} wants a login of a kind that is not known.")
        query = {"service": fields.get("service", "")}
        query["scope"] = fields.get("scope", f"repository:{self.repository}:pull")
        url = f"{fields['realm']}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310
            given = json.load(answer)
        token: str = given.get("token") or given["access_token"]
        return token


def fetch(registry: Registry, kind: str, digest: str, out: Path) -> None:
    """Write the object to `out`; Refused D183 when its bytes are others, or cannot be had."""
    wanted = digest.removeprefix("sha256:")
    for folder in filter(None, os.environ.get("DSV41_BLOBS", "").split(":")):
        for place in (Path(folder, "blobs", "sha256", wanted), Path(folder, wanted)):
            if place.is_file():
                shutil.copyfile(place, out)
                return check(out, digest, source=str(place))
    with out.open("wb") as file:
        _download(registry, kind, digest, file)
    return check(out, digest, source=registry.reference)


def check(path: Path, digest: str, *, source: str) -> None:
    """Refused D183 unless the file has the digest."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    if f"sha256:{found.hexdigest()}" != digest:
        size = path.stat().st_size
        raise Refused(
            f"D183 {source} gave {size} bytes with SHA-256 {found.hexdigest()}; expected {digest}."
        )


def _download(registry: Registry, kind: str, digest: str, file: BinaryIO) -> None:
    """All bytes, in several goes where the connection breaks off."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(min(2.0**attempt, 10) / 10)
        try:
            problem = _go_on(registry, kind, digest, file)
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
            if error.code == http.HTTPStatus.UNAUTHORIZED and registry.forget():
                continue  # the token ran out, as they do within minutes
            if error.code < 500 and error.code != http.HTTPStatus.TOO_MANY_REQUESTS:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = str(error)
        if not problem:
            return
    raise Refused(f"D183 {registry.reference} does not give {digest}: {problem}.")


def _go_on(registry: Registry, kind: str, digest: str, file: BinaryIO) -> str:
    """Read on from where the file ends; what is missing in words, or nothing.

    A body that is cut off ends without an exception, so its length is compared.
    """
    with registry.open(kind, digest, offset=file.tell()) as answer:
        if file.tell() and answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.seek(0)  # the server starts again
            file.truncate()
        stated, before = answer.headers.get("Content-Length"), file.tell()
        shutil.copyfileobj(answer, file, CHUNK)
    got = file.tell() - before
    if stated is not None and got != int(stated):
        return f"{got} of {stated} bytes came"
    return ""


def main() -> int:
    """Do it."""
    reference, kind, digest, out = sys.argv[1:]
    try:
        fetch(Registry(reference), kind, digest, Path(out))
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
