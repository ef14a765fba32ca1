"""Which bytes of a checkpoint one rank of an engine will look at, from its headers alone.

Format: a safetensors file is a little-endian u64, the length of a JSON header, the header, and the
tensors' bytes (github.com/huggingface/safetensors, README, "Format"). Names and shapes are those of
deepseek-ai/DeepSeek-V4.1-Flash. A tensor is wanted whole, in some of its rows, or not at all:

- routed experts: those of this rank's group (EP); of w1 and w3 this rank's rows (TP). w2 is cut
  by columns, whose pieces are shorter than a page of a disk, so it is wanted whole.
- the query projection, the shared expert's w1 and w3, embedding and head: this rank's rows.
- Engram tables: not at all. A draft wants only what is its own, a target what is not a draft's.
- all else: whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from dsv41.errors import CheckFailed
from dsv41.geometry import pad_vocab

Part = Literal["target", "draft"]
BYTES = {"I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4, "I64": 8}
BLOCK = 32  # of an FP8 weight's scales, both ways, and of an FP4 weight's along its columns
MOST_HEADER = 100 << 20  # the format's own limit
FIX = "run dsv41 weights verify, or set DSV41_FAST_LOAD=0"
EXPERT = re.compile(r"(layers|mtp)\.\d+\.ffn\.experts\.(\d+)\.(w[123])\.(weight|scale)")
TABLE = re.compile(r"layers\.\d+\.engram\.embed\.(?:weight|scale)")
CUT = re.compile(
    r"(?:(?:layers|mtp)\.\d+\.(?:attn\.(wq_b)|ffn\.shared_experts\.(w1|w3))|(embed|head))"
    r"\.(weight|scale)"
)
OTHERS = re.compile(
    r"(?:layers|mtp)\.\d+\.(?:attn_norm|ffn_norm|hc_attn_|hc_ffn_|attn\.|ffn\.gate\.|"
    r"ffn\.shared_experts\.w2\.|engram\.(?:wkv|q_weight|k_weight)).*"
    r"|mtp\.\d+\.(?:main_proj|main_norm|norm|markov_head|confidence_head)\..*"
    r"|norm\.weight|(?:vision|aligner)\..*|image_(?:start|end|newline)"
)


# The target's loader drops what is the draft's, but dequantizes wo_a before it looks at the name.
DRAFTED = re.compile(r"mtp\.\d+\.(?!attn\.wo_a\.)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One tensor of a file: `start` is the offset of its first byte in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        """What it takes in the file."""
        return prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A tensor and which of its bytes the rank wants: `first` up to `last`, equal for none."""

    stored: Stored
    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One rank's place among the ranks, and whether its attention tensors are padded (tp_pad).

    ep groups of experts, each cut in `inner`; heads are cut in attn, all else in tp.
    """

    part: Part
    tp: tuple[int, int]  # rank, ranks
    attn: tuple[int, int]
    ep: tuple[int, int]
    inner: tuple[int, int]
    padded: bool = False


def headers(path: Path) -> list[Stored]:
    """The tensors of a safetensors file, in the order of their bytes.

    Raises:
        CheckFailed: D485, when the header is damaged or does not fit the file.
        OSError: when the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_HEADER, size - 8):
            raise _damaged(path, f"a header of {length} bytes in a file of {size}")
        text = file.read(length)
    try:
        found = dict(json.loads(text))
        found.pop("__metadata__", None)
        tensors = [_stored(name, entry, 8 + length) for name, entry in found.items()]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, repr(error)) from error
    tensors.sort(key=lambda stored: stored.start)
    if tensors and tensors[-1].start + tensors[-1].bytes > size:
        raise _damaged(path, f"{tensors[-1].name} ends beyond its {size} bytes")
    return tensors


def _stored(name: str, entry: Mapping[str, Any], base: int) -> Stored:
    first, last = entry["data_offsets"]
    shape = tuple(int(length) for length in entry["shape"])
    stored = Stored(name=name, dtype=entry["dtype"], shape=shape, start=base + int(first))
    if stored.bytes != last - first or first < 0:
        raise ValueError(f"{name} is {last - first} bytes for {entry['dtype']} {list(shape)}")
    return stored


def _damaged(path: Path, says: str) -> CheckFailed:
    return CheckFailed("D485", f"{os.fspath(path)} is no safetensors file: {says}.", fix=FIX)


class Plan:
    """What one rank wants of each tensor of the checkpoint whose config.json this is."""

    def __init__(self, config: Mapping[str, Any], place: Place) -> None:
        self.text: Mapping[str, Any] = config["text_config"]
        self.place = place

    def of_file(self, path: Path) -> Iterator[Wanted]:
        """The tensors of a file that the model is given; a draft only those of its stages.

        Raises:
            CheckFailed: D485, for a tensor of another name, shape or format than the checkpoint's.
        """
        for stored in headers(path):
            if self.place.part == "draft" and not stored.name.startswith("mtp."):
                continue
            yield self.of_tensor(stored)

    def of_tensor(self, stored: Stored) -> Wanted:
        """What the rank wants of one tensor; raises as `of_file`."""
        first, last = self._rows(stored)
        row = stored.bytes // stored.shape[0] if stored.shape and stored.shape[0] else 0
        return Wanted(stored=stored, first=first * row, last=last * row)

    def _rows(self, stored: Stored) -> tuple[int, int]:
        whole, none = (0, stored.shape[0] if stored.shape else 0), (0, 0)
        foreign = self.place.part == "target" and DRAFTED.match(stored.name)
        if found := EXPERT.fullmatch(stored.name):
            rows = self._expert(stored, found)
        elif found := CUT.fullmatch(stored.name):
            rows = self._cut(stored, found)
        elif TABLE.fullmatch(stored.name):
            rows = none
        elif OTHERS.fullmatch(stored.name):
            rows = whole
        else:
            raise _refused(stored, "no such tensor")
        return none if foreign else rows

    def _expert(self, stored: Stored, found: re.Match[str]) -> tuple[int, int]:
        names = {"layers": "n_routed_experts", "mtp": "dspark_n_routed_experts"}
        count, number = self.text[names[found[1]]], int(found[2])
        if number >= count:
            raise _refused(stored, f"{count} experts")
        hidden, inner = self.text["hidden_size"], self.text["moe_intermediate_size"]
        rows, columns = (hidden, inner) if found[3] == "w2" else (inner, hidden)
        if found[4] == "weight":
            _require(stored, "I8", rows, columns // 2)
        else:
            _require(stored, "F8_E8M0", rows, columns // BLOCK)
        group, groups = self.place.ep
        mine = -(-count // groups)  # tp_pad adds experts where they do not divide
        if number // mine != group:
            return 0, 0
        rank, ranks = self.place.inner
        if found[3] == "w2" or rows % (ranks * BLOCK):  # the engine pads what does not divide
            return 0, rows
        return rows * rank // ranks, rows * (rank + 1) // ranks

    def _cut(self, stored: Stored, found: re.Match[str]) -> tuple[int, int]:
        """Rows of a tensor that is cut by rows."""
        text, hidden = self.text, self.text["hidden_size"]
        if found[3]:
            _require(stored, "BF16", text["vocab_size"], hidden)
            rank, ranks = self.place.tp
            each = pad_vocab(text["vocab_size"], tp=ranks).per_rank
            return min(each * rank, stored.shape[0]), min(each * (rank + 1), stored.shape[0])
        if found[1]:
            rows, columns = text["num_attention_heads"] * text["head_dim"], text["q_lora_rank"]
            rank, ranks = (0, 1) if self.place.padded else self.place.attn
        else:
            rows, columns = text["moe_intermediate_size"] * text["n_shared_experts"], hidden
            rank, ranks = self.place.tp
        step = 1 if found[4] == "weight" else BLOCK
        shape = -(-rows // step), -(-columns // step)
        _require(stored, "F8_E8M0" if step > 1 else "F8_E4M3", *shape)
        if rows % (ranks * BLOCK):
            return 0, shape[0]
        return rows * rank // ranks // step, rows * (rank + 1) // ranks // step


def _require(stored: Stored, dtype: str, *shape: int) -> None:
    if (stored.dtype, stored.shape) != (dtype, shape):
        raise _refused(stored, f"{dtype} {list(shape)}")


def _refused(stored: Stored, expected: str) -> CheckFailed:
    found = f"{stored.name}, {stored.dtype} {list(stored.shape)}"
    says = f"The checkpoint does not follow the read plan: expected {expected}, found {found}."
    return CheckFailed("D485", says, fix=FIX)
