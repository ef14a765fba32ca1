"""Layers of tests: entries made, written and read back."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from tar_layer import Bytes, Entry, Layer, Refused


def entry(path: str, text: str = "", *, owner: str = "a", **more: Any) -> Entry:
    kind = more.pop("kind", "file")
    return Entry(path=path, kind=kind, owner=owner, data=Bytes(content=text.encode()), **more)


def written(*entries: Entry, rules: dict[str, str | None] | None = None) -> bytes:
    layer = Layer(rules=rules or {})
    layer.extend(entries)
    out = io.BytesIO()
    layer.write(out)
    return out.getvalue()


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def content(data: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file = archive.extractfile(path)
        assert file is not None
        return file.read()


def refused(*entries: Entry, rules: dict[str, str | None] | None = None) -> str:
    with pytest.raises(Refused) as caught:
        written(*entries, rules=rules)
    return str(caught.value)
