"""Fetch an object of an OCI registry by its digest, and accept nothing else.

    python registry.py REFERENCE KIND DIGEST OUT     KIND is manifests or blobs

REFERENCE is HOST[:PORT]/REPOSITORY, or http://HOST... for a registry without TLS. Folders named in
DSV41_BLOBS (separated by ":", each an OCI layout or a folder of files named by their hex) come
first, so that a machine without network can build from what another has brought.
Protocol: OCI distribution-spec 1.0; authentication by the 401 answer's WWW-Authenticate.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from download import TIMEOUT, Refused, check, download

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


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

    def open(
        self, kind: str, name: str, *, offset: int = 0, fresh: bool = False
    ) -> http.client.HTTPResponse:
        """The answer for an object; asks for a token when the registry wants one.

        `fresh` says that the token was given just now, so that a second refusal is final.
        """
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
            if error.code != http.HTTPStatus.UNAUTHORIZED or fresh:
                raise
            # none yet, or one that ran out, as they do within minutes
            self._token = self._ask_token(error.headers.get("WWW-Authenticate", ""))
            return self.open(kind, name, offset=offset, fresh=True)
        if not isinstance(answer, http.client.HTTPResponse):
            raise Refused(f"D183 {self.reference} is not spoken to by HTTP.")
        return answer

    def _ask_token(self, challenge: str) -> str:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.startswith("Bearer ") or "realm" not in fields:
            raise Refused(f"D183 {self.reference} wants a login of a kind that is not known.")
        query = {"service": fields.get("service", "")}
        query["scope"] = fields.get("scope", f"repository:{self.repository}:pull")
        url = f"{fields['realm']}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310
            data = answer.read()
        try:
            given = json.loads(data)
            token: str = given.get("token") or given["access_token"]
        except (ValueError, KeyError, AttributeError) as error:
            raise Refused(f"D183 {fields['realm']} gives no token for {self.reference}.") from error
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
        download(
            lambda offset: registry.open(kind, digest, offset=offset),
            file,
            what=digest,
            source=registry.reference,
        )
    return check(out, digest, source=registry.reference)


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
