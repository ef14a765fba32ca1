"""The read plan and the reader: which bytes, that they are the file's, and what is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dsv41.adapters import fast_reader
from dsv41.adapters.fast_reader import Reader
from dsv41.adapters.read_plan import Place, Plan, Stored, headers
from dsv41.errors import CheckFailed, EngineFailed

TEXT = {
    "hidden_size": 128,
    "moe_intermediate_size": 192,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "dspark_n_routed_experts": 2,
    "vocab_size": 256,
    "num_attention_heads": 4,
    "head_dim": 64,
    "q_lora_rank": 96,
}
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "layers.0.ffn.experts.0.w1.weight": ("I8", (192, 64)),
    "layers.0.ffn.experts.3.w1.scale": ("F8_E8M0", (192, 4)),
    "layers.0.ffn.experts.1.w2.weight": ("I8", (128, 96)),
    "layers.0.attn.wq_b.weight": ("F8_E4M3", (256, 96)),
    "layers.0.attn.wq_b.scale": ("F8_E8M0", (8, 3)),
    "layers.0.ffn.shared_experts.w3.scale": ("F8_E8M0", (6, 4)),
    "layers.0.attn.attn_sink": ("F32", (4,)),
    "layers.1.engram.embed.weight": ("F8_E4M3", (999, 256)),
    "head.weight": ("BF16", (256, 128)),
    "mtp.0.ffn.experts.1.w1.weight": ("I8", (192, 64)),
    "mtp.0.attn.wo_a.weight": ("F8_E4M3", (64, 64)),
    "norm.weight": ("BF16", (128,)),
}


def place(rank: int, ranks: int, *, ep: int = 1, **more: Any) -> Place:
    inner = ranks // ep
    parts = {"part": "target", "tp": (rank, ranks), "attn": (rank, ranks)} | more
    return Place(ep=(rank // inner, ep), inner=(rank % inner, inner), **parts)


def wanted(name: str, where: Place) -> tuple[int, int]:
    dtype, shape = TENSORS[name]
    found = Plan({"text_config": TEXT}, where).of_tensor(
        Stored(name=name, dtype=dtype, shape=shape, start=0)
    )
    return found.first, found.last


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize(("ranks", "ep"), [(1, 1), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_ranks_together_want_every_byte_that_is_anyones(name: str, ranks: int, ep: int) -> None:
    dtype, shape = TENSORS[name]
    size = Stored(name=name, dtype=dtype, shape=shape, start=0).bytes
    covered: set[int] = set()
    for rank in range(ranks):
        first, last = wanted(name, place(rank, ranks, ep=ep))
        assert 0 <= first <= last <= size
        covered.update(range(first, last))
    nobodys = "engram.embed" in name or name.startswith("mtp.0.ffn")
    assert covered == (set() if nobodys else set(range(size)))


@pytest.mark.parametrize(
    ("name", "where", "share"),
    [
        ("layers.0.ffn.experts.0.w1.weight", place(1, 2), (0.5, 1.0)),
        ("layers.0.ffn.experts.3.w1.scale", place(0, 2, ep=2), (0.0, 0.0)),
        ("layers.0.ffn.experts.3.w1.scale", place(2, 4, ep=2), (0.0, 0.5)),
        ("layers.0.ffn.experts.1.w2.weight", place(1, 2), (0.0, 1.0)),
        ("layers.0.attn.wq_b.scale", place(1, 2), (0.5, 1.0)),
        ("layers.0.attn.wq_b.scale", place(1, 2, padded=True), (0.0, 1.0)),
        ("head.weight", place(2, 4), (0.5, 0.75)),
        ("mtp.0.ffn.experts.1.w1.weight", place(0, 2, part="draft"), (0.0, 0.5)),
        ("mtp.0.attn.wo_a.weight", place(1, 2), (0.0, 1.0)),  # the target dequantizes it as well
        ("layers.0.ffn.experts.0.w1.weight", place(3, 4), (0.0, 1.0)),  # 48 rows are no blocks
    ],
)
def test_what_a_rank_wants(name: str, where: Place, share: tuple[float, float]) -> None:
    dtype, shape = TENSORS[name]
    size = Stored(name=name, dtype=dtype, shape=shape, start=0).bytes
    assert wanted(name, where) == (size * share[0], size * share[1])


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("layers.0.ffn.experts.4.w1.weight", "I8", (192, 64)),
        ("layers.0.ffn.experts.0.w1.weight", "I8", (192, 128)),
        ("layers.0.ffn.experts.0.w1.weight", "U8", (192, 64)),
        ("layers.0.ffn.experts.0.w4.weight", "I8", (192, 64)),
        ("layers.0.attn.wq_b.weight", "F8_E4M3", (512, 96)),
        ("head.weight", "BF16", (128, 256)),
        ("model.layers.0.attn.wq_b.weight", "F8_E4M3", (256, 96)),
        ("layers.0.mlp.up.weight", "BF16", (8, 8)),
    ],
)
def test_another_tensor_is_refused(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CheckFailed, match="expected .*, found " + name) as caught:
        Plan({"text_config": TEXT}, place(0, 1)).of_tensor(
            Stored(name=name, dtype=dtype, shape=shape, start=0)
        )
    assert caught.value.code == "D485"


def write(path: Path, *, skew: int = 0) -> dict[str, bytes]:
    """All tensors in one file, its data at an odd place where skew is odd; their bytes."""
    header, data, end = {}, {}, 0
    for number, (name, (dtype, shape)) in enumerate(TENSORS.items()):
        size = Stored(name=name, dtype=dtype, shape=shape, start=0).bytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        data[name] = bytes((number + place * 7) % 251 for place in range(size))
        end += size
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode() + b" " * skew
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data.values()))
    return data


def reader(path: Path, where: Place, **more: Any) -> Reader:
    return Reader([path], Plan({"text_config": TEXT}, where), **{"budget": 1 << 20} | more)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).numpy().data)


@pytest.mark.parametrize("skew", [0, 8, 4000])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_byte_is_the_files_wherever_one_looks(tmp_path: Path, skew: int, rank: int) -> None:
    data = write(tmp_path / "a.safetensors", skew=skew)
    found = reader(tmp_path / "a.safetensors", place(rank, 2))
    seen = {name: (tuple(t.shape), as_bytes(t)) for name, t in found}
    assert seen == {name: (TENSORS[name][1], text) for name, text in data.items()}
    assert found.held.bytes == 0
    # the table and the draft's expert were looked at although nobody wanted them
    assert found.held.faulted is not None
    assert found.held.faulted >= 999 * 256
    assert found.held.read < sum(map(len, data.values()))


def test_what_is_not_looked_at_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors")
    found = reader(tmp_path / "a.safetensors", place(0, 2))
    assert len(list(found)) == len(TENSORS)
    assert found.held.faulted == 0


def test_memory_stays_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.safetensors")
    found = reader(tmp_path / "a.safetensors", place(0, 1), budget=40_000)
    most = 0
    for _name, _tensor in found:
        most = max(most, found.held.bytes)
    assert most < 40_000 + 2 * 70_000  # one beyond it is begun, and one is in our hands
    assert "the loader keeps" not in caplog.text
    monkeypatch.setattr(fast_reader, "PATIENCE", 0.05)
    found = reader(tmp_path / "a.safetensors", place(0, 1), budget=40_000)
    kept = dict(found)  # a loader that keeps all is served all the same
    assert len(kept) == len(TENSORS)
    assert "the loader keeps" in caplog.text
    monkeypatch.setattr(fast_reader, "MOST_AHEAD", 2)
    found = reader(tmp_path / "a.safetensors", place(0, 1))
    found.held.most = 3
    most = max(found.held.tensors for _name, _tensor in found)
    assert most <= 3 + 2
    assert found.held.tensors == 0


def test_without_direct_reads_the_page_cache_is_used_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = write(tmp_path / "a.safetensors")
    real = os.open

    def refusing(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    found = {n: as_bytes(t) for n, t in reader(tmp_path / "a.safetensors", place(0, 1))}
    assert found == data
    assert "is read through the page cache: Invalid argument" in caplog.text


def test_a_file_system_that_takes_the_flag_and_refuses_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = write(tmp_path / "a.safetensors")
    real = os.preadv

    def refusing(descriptor: int, *more: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, *more)

    monkeypatch.setattr(os, "preadv", refusing)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    found = {n: as_bytes(t) for n, t in reader(tmp_path / "a.safetensors", place(0, 1))}
    assert found == data
    assert "is read through the page cache: Invalid argument" in caplog.text
    assert len(list(descriptors.iterdir())) == before


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    going: Iterator[Any] = iter(reader(path, place(0, 1), budget=1))
    next(going)
    os.truncate(path, 4096)
    with pytest.raises(EngineFailed, match="it ends before byte") as caught:
        [name for name, _ in going]
    assert caught.value.code == "D486"


def test_a_drive_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.safetensors")

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(EngineFailed, match=r"at byte \d+: Input/output error") as caught:
        list(reader(tmp_path / "a.safetensors", place(0, 1)))
    assert caught.value.code == "D486"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:4],
        lambda text: struct.pack("<Q", 1 << 40) + text[8:],
        lambda text: text.replace(b'{"dtype"', b'["dtype"', 1),
        lambda text: text.replace(b'"BF16"', b'"BF61"', 1),
        lambda text: text.replace(b"[0, 12288]", b"[0, 12289]", 1),
        lambda text: text[:-1],
    ],
    ids=["cut", "length", "json", "format", "size", "end"],
)
def test_a_damaged_header_is_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "a.safetensors"
    write(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckFailed, match="is no safetensors file") as caught:
        headers(path)
    assert caught.value.code == "D485"
