"""The row file read by another program: a decoder written from the description of the format."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

FIELDS = ("version", "header", "layer", "rank", "tp", "per_page", "row", "weight", "scale", "page")
TEXTS = (("partition", 80, 32), ("packer", 112, 32), ("revision", 144, 64), ("file", 328, 64))


def _table() -> NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (crc & np.uint32(1)) * np.uint32(0x82F63B78)
    return crc


TABLE = _table()


def crcs_of(messages: Bytes) -> NDArray[np.uint32]:
    """CRC32C of each of n messages of one length: [n, length] -> [n]."""
    crc = np.full(len(messages), 0xFFFFFFFF, np.uint32)
    for column in messages.T:
        crc = (crc >> np.uint32(8)) ^ TABLE[(crc ^ column) & np.uint32(0xFF)]
    return crc ^ np.uint32(0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    return int(crcs_of(np.frombuffer(data, np.uint8)[None])[0])


def header(path: Path) -> dict[str, Any]:
    page = path.read_bytes()[:4096]
    assert page[:8] == b"DSV41ROW"
    found: dict[str, Any] = dict(zip(FIELDS, struct.unpack_from("<10I", page, 8), strict=True))
    found["total"], found["local"], found["pages"] = struct.unpack_from("<3Q", page, 48)
    found["flags"], ranges = struct.unpack_from("<2I", page, 72)
    for name, at, size in TEXTS:
        found[name] = page[at : at + size].rstrip(b"\0").decode()
    found["header_sha256"], found["sample_sha256"] = page[208:240], page[264:296]
    found["source"] = struct.unpack_from("<3Q", page, 240)
    found["digest"] = page[296:328]
    found["ranges"] = [struct.unpack_from("<3Q", page, 512 + 24 * i) for i in range(ranges)]
    assert not any(page[392:512])
    assert not any(page[512 + 24 * ranges : 4092])
    assert struct.unpack_from("<I", page, 4092)[0] == crc32c(page[:4092])
    return found


def rows(path: Path) -> dict[int, tuple[Bytes, Bytes]]:
    """Global row -> (256 weight bytes, 8 scale bytes); every CRC, number and digest is checked."""
    head = header(path)
    data = np.fromfile(path, np.uint8)
    assert data.size == 4096 * (1 + head["pages"])
    pages = data[4096:].reshape(-1, 4096)
    assert (pages[:, 4020:4028].copy().view("<u8")[:, 0] == np.arange(len(pages))).all()
    stored = pages[:, 4028:4032].copy().view("<u4")[:, 0]
    assert (stored == crcs_of(np.delete(pages, np.s_[4028:4032], axis=1))).all()
    assert not pages[:, 4032:].any()
    assert head["digest"] == hashlib.sha256(stored.tobytes()).digest()
    return _rows(head, pages)


def _rows(head: dict[str, Any], pages: Bytes) -> dict[int, tuple[Bytes, Bytes]]:
    ids = [g for lo, hi, _ in head["ranges"] for g in range(lo, hi)]
    assert len(ids) == head["local"] <= 15 * len(pages)
    weights = pages[:, :3840].reshape(-1, 256)
    scales = pages[:, 3840:3960].reshape(-1, 8)
    stored = pages[:, 3960:4020].copy().view("<u4").reshape(-1)
    keys = b"".join(struct.pack("<IQ", head["layer"], row) for row in ids)
    prefix = np.frombuffer(keys, np.uint8).reshape(-1, 12)
    used = slice(0, len(ids))
    crcs = crcs_of(np.concatenate([prefix, weights[used], scales[used]], axis=1))
    assert (stored[used] == crcs).all()
    for unused in (weights, scales, stored):
        assert not unused[len(ids) :].any()
    return dict(zip(ids, zip(weights, scales, strict=True), strict=False))
