"""Objects of an OCI registry by their digests, read as anybody may.

Protocol: OCI distribution-spec 1.0; a token by the 401 answer's WWW-Authenticate. A registry that
wants a login is left to the programs that have one: they write an archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dsv41.errors import CheckFailed
from dsv41.images.oci import Blob, digest_of

_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TRIES = 5
_TIMEOUT = 60.0  # seconds without a byte
_CHUNK = 1 << 20


class Registry:
    """One repository: HOST[:PORT]/NAME, or http://HOST... for one without TLS."""

    def __init__(self, reference: str) -> None:
        scheme, separator, rest = reference.rpartition("://")
        host, _, self._name = rest.partition("/")
        # the one registry whose name is not its address (docker's own convention)
        host = "registry-1.docker.io" if host == "docker.io" else host
        self._url = f"{scheme}{separator}{host}" if separator else f"https://{host}"
        self.reference = reference
        self._token: str | None = None

    def get(self, kind: str, digest: str) -> bytes:
        """A small object: a manifest or a config. CheckFailed D418 when it cannot be had."""
        found = None
        for _ in range(_TRIES):
            with self._asked(kind, digest) as answer, _breaking_off():
                data = answer.read()
                if digest_of(data) == digest:
                    return data
                found = digest_of(data)
        raise self._refused(digest, f"it came with {found}" if found else "it broke off")

    def fetch(self, blob: Blob, kept: Path) -> Blob:
        """The blob with its place in the folder; one that broke off goes on where it ended."""
        kept.mkdir(parents=True, exist_ok=True)
        whole, part = kept / blob.hex, kept / f".{blob.hex}.part"
        for _ in range(_TRIES):
            if whole.is_file() and whole.stat().st_size == blob.size:
                return replace(blob, path=whole)
            self._more(blob, part)
            if part.stat().st_size == blob.size:
                if _sum(part) != blob.digest:
                    part.unlink()
                    raise self._refused(blob.digest, "its bytes have another SHA-256")
                part.replace(whole)
        if whole.is_file():
            return replace(blob, path=whole)
        raise self._refused(blob.digest, f"it broke off {_TRIES} times")

    def _more(self, blob: Blob, part: Path) -> None:
        have = part.stat().st_size if part.exists() else 0
        if have > blob.size:
            have = 0
        with self._asked("blobs", blob.digest, offset=have) as answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if resumed else "wb") as file, _breaking_off():
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)

    @contextlib.contextmanager
    def _asked(
        self, kind: str, digest: str, *, offset: int = 0
    ) -> Iterator[http.client.HTTPResponse]:
        try:
            answer = self._open(kind, digest, offset=offset, again=True)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            raise self._refused(digest, str(error)) from error
        with answer:
            yield answer

    def _open(
        self, kind: str, digest: str, *, offset: int, again: bool
    ) -> http.client.HTTPResponse:
        request = urllib.request.Request(f"{self._url}/v2/{self._name}/{kind}/{digest}")  # noqa: S310 - the operator's own reference
        request.add_header("Accept", ", ".join(_TYPES) if kind == "manifests" else "*/*")
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self._token:
            # not for the host that a blob is redirected to: it answers 400 to a foreign token
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            answer = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.UNAUTHORIZED or not again:
                raise
            self._token = self._asked_token(error.headers.get("WWW-Authenticate", ""))
            return self._open(kind, digest, offset=offset, again=False)
        if not isinstance(answer, http.client.HTTPResponse):
            raise ValueError("it is not spoken to by HTTP")  # noqa: TRY004 - of the reference
        return answer

    def _asked_token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.startswith("Bearer ") or "realm" not in fields:
            raise ValueError("it wants a login")
        query = {"scope": fields.get("scope", f"repository:{self._name}:pull")}
        query["service"] = fields.get("service", "")
        url = f"{fields['realm']}?{urllib.parse.urlencode(query)}"
        data = b""
        for _ in range(_TRIES):
            answer = urllib.request.urlopen(url, timeout=_TIMEOUT)  # noqa: S310
            with answer, _breaking_off():
                data = answer.read()
                break
        given = json.loads(data)
        return str(given.get("token") or given["access_token"])

    def _refused(self, digest: str, says: str) -> CheckFailed:
        return CheckFailed(
            "D418",
            f"{self.reference} did not give {digest}: {says}.",
            fix="write an archive where it can be had, skopeo copy docker://REF oci-archive:FILE, "
            "and give --from FILE",
        )


@contextlib.contextmanager
def _breaking_off() -> Iterator[None]:
    """A body that ends early is asked for again from there."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        yield


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
