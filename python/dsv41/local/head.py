"""The fitted output head: a few rows of `head.weight`, committed; all other rows are zero."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from dsv41.errors import CheckFailed

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from dsv41.local.config import ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Readout:
    """Token ids int32 [n] and their rows BF16 [n, hidden], the latter as uint16 words."""

    token_ids: npt.NDArray[np.int32]
    rows: npt.NDArray[np.uint16]
    digest: str

    @classmethod
    def from_file(cls, path: Path) -> Readout:
        """Read the safetensors file with tensors `token_ids` and `rows`.

        By hand: numpy has no BF16, and making a checkpoint must not import torch (1.7 s).

        Raises CheckFailed D047 when it is not such a file.
        """
        content = path.read_bytes()
        try:
            start = 8 + int.from_bytes(content[:8], "little")
            header = json.loads(content[8:start])
            ids = _tensor(content[start:], header["token_ids"], "I32").view("<i4")
            rows = _tensor(content[start:], header["rows"], "BF16").view("<u2")
            rows = rows.reshape(header["rows"]["shape"])
        except (ValueError, KeyError) as error:
            raise _wrong(f"{path} cannot be read: {error!r}") from error
        if rows.ndim != 2 or len(ids) != len(rows) or len(np.unique(ids)) != len(ids):
            found = f"{len(ids)} token ids for rows {list(rows.shape)}, or one twice"
            raise _wrong(f"{path} has {found}")
        return cls(token_ids=ids, rows=rows, digest=sha256(content).hexdigest())

    def weight(self, config: ModelConfig) -> bytes:
        """The bytes of `head.weight`, BF16 [vocab_size, hidden_size].

        Raises CheckFailed D047 when rows or ids do not fit the configuration.
        """
        shape = (config.vocab_size, config.hidden_size)
        known = (self.token_ids >= 0) & (self.token_ids < config.vocab_size)
        if self.rows.shape[1] != config.hidden_size or not known.all():
            raise _wrong(f"rows {list(self.rows.shape)} do not fit head.weight {list(shape)}")
        words = np.zeros(shape, "<u2")
        words[self.token_ids] = self.rows
        return words.tobytes()


def _tensor(data: bytes, entry: dict[str, Any], dtype: str) -> npt.NDArray[np.uint8]:
    if entry["dtype"] != dtype:
        raise ValueError(f"dtype is {entry['dtype']}, expected {dtype}")
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[begin:end], np.uint8)


def _wrong(says: str) -> CheckFailed:
    return CheckFailed(
        "D047",
        f"The fitted output head does not fit: {says}.",
        fix="reinstall dsv41; after a change of the model: python -m dsv41.local.readout.fit",
    )
