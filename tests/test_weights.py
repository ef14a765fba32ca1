"""Loading one rank's tensors: exact values, padding, slices, poison, damage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dsv41.adapters.shard import axis_of
from dsv41.errors import CheckFailed
from dsv41.geometry import Shard
from dsv41.local.fixture import geometries, grid, writer
from dsv41.local.fixture.tensors import TensorSpec, specs
from dsv41.local.model.config import ModelConfig
from dsv41.local.model.weights import load_shard
from dsv41.rows import INDEX

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def filled(spec: TensorSpec) -> bytes | memoryview:
    return grid.draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fixture with 300 words and a few short Engram rows: all tensors, less than 4 MB."""
    raw = geometries.config("fixture")
    sizes = {
        "vocab_size": 300,
        "engram_num_embeddings": [40, 48],
        "engram_n_heads": 1,
        "n_routed_experts": 6,
    }
    raw["text_config"] |= sizes
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = list(specs(ModelConfig.from_dict(raw)))
    writer.write_shards(folder, writer.shard_tensors(tensors, limit=1 << 20), fill=filled)
    return folder


@pytest.fixture(scope="module")
def config(small: Path) -> ModelConfig:
    return ModelConfig.from_file(small)


@pytest.fixture(scope="module")
def stored(small: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path in small.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {key: file.get_tensor(key) for key in list(file.keys())}
    return found


@pytest.fixture(scope="module")
def alone(small: Path, config: ModelConfig) -> dict[str, torch.Tensor]:
    return load_shard(small, config=config, shard=Shard(rank=0, tp=1))


def dequantized(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Element by element, in float64 and by another road than the loader's."""
    if weight.dtype == torch.int8:
        codes = weight.view(torch.uint8).numpy()
        values = np.empty((codes.shape[0], codes.shape[1] * 2))
        values[:, 0::2], values[:, 1::2] = np.array(E2M1)[codes % 16], np.array(E2M1)[codes // 16]
    else:
        values = weight.double().numpy()
    row, column = np.indices(values.shape)
    rows_each = values.shape[0] // scale.shape[0]
    return torch.from_numpy(values * scale.double().numpy()[row // rows_each, column // 32])


def test_values_are_exact(alone: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> None:
    for name, tensor in alone.items():
        scale = stored.get(name.removesuffix("weight") + "scale")
        if scale is None or not name.endswith(".weight"):
            expected = stored[name].double()
        else:
            expected = dequantized(stored[name], scale)
        assert tensor.dtype == torch.float32
        size = expected.shape[0]  # the vocabulary is padded to 320 even on one rank
        assert torch.equal(tensor[:size].double(), expected), name
        assert not tensor[size:].any()
    tables = {name for name in stored if ".engram.embed." in name}
    scales = {name for name in stored if name.endswith(".scale")}
    assert set(alone) == set(stored) - tables - scales
    assert len(tables) == 4


def test_float64_holds_the_same_numbers(
    small: Path, config: ModelConfig, alone: dict[str, torch.Tensor]
) -> None:
    wide = load_shard(small, config=config, shard=Shard(rank=0, tp=1), dtype=torch.float64)
    for name, tensor in wide.items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, alone[name].double())


@pytest.mark.parametrize(
    ("tp", "layout"), [(2, "legal"), (3, "legal"), (3, "balanced"), (5, "legal")]
)
def test_the_ranks_together_hold_the_whole_and_zeros(
    small: Path, config: ModelConfig, alone: dict[str, torch.Tensor], tp: int, layout: str
) -> None:
    parts = [
        load_shard(small, config=config, shard=Shard(rank=rank, tp=tp), layout=layout)
        for rank in range(tp)
    ]
    for name, whole in alone.items():
        cut = axis_of(name)
        if cut is None:
            assert all(torch.equal(part[name], whole) for part in parts)
            continue
        dim, axis = cut
        size = 300 if axis == "vocab" else whole.shape[dim]
        joined = torch.cat([part[name] for part in parts], dim)
        assert torch.equal(joined.narrow(dim, 0, size), whole.narrow(dim, 0, size)), name
        assert not joined.narrow(dim, size, joined.shape[dim] - size).any()
        assert len({part[name].shape for part in parts}) == 1
    assert (
        parts[0]["layers.0.attn.attn_sink"].shape[0]
        == {
            (2, "legal"): 8,
            (3, "legal"): 8,
            (3, "balanced"): 6,
            (5, "legal"): 8,
        }[tp, layout]
    )


def test_poison_reaches_nothing_but_padded_words(small: Path, config: ModelConfig) -> None:
    for rank in (1, 2):
        shard = Shard(rank=rank, tp=3)
        clean = load_shard(small, config=config, shard=shard)
        poisoned = load_shard(small, config=config, shard=shard, fill=float("nan"))
        real = 128 * 3 - 300 if rank == 2 else 0
        for name, tensor in poisoned.items():
            if name in ("embed.weight", "head.weight"):
                assert tensor.shape[0] == 128
                assert tensor[128 - real :].isnan().all()
                assert torch.equal(tensor[: 128 - real], clean[name][: 128 - real])
            else:
                assert torch.equal(tensor, clean[name]), name


def test_whole_experts(small: Path, config: ModelConfig, alone: dict[str, torch.Tensor]) -> None:
    for rank in range(3):
        shard = Shard(rank=rank, tp=3)
        part = load_shard(small, config=config, shard=shard, expert_parallel=True)
        prefix = "layers.3.ffn.experts."
        owned = {int(name.split(".")[4]) for name in part if name.startswith(prefix)}
        assert owned == {2 * rank, 2 * rank + 1}
        for expert in owned:
            for matrix in ("w1", "w2", "w3"):
                name = f"{prefix}{expert}.{matrix}.weight"
                assert torch.equal(part[name], alone[name])
        assert part["layers.3.ffn.shared_experts.w1.weight"].shape[0] == 32


def patched(small: Path, copy: Path, name: str, at: int, value: int) -> Path:
    """A copy of the checkpoint with one byte of a tensor changed."""
    for path in small.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    places = json.loads((copy / INDEX).read_text())["weight_map"]
    path = copy / places[name]
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    start = json.loads(content[8 : 8 + length])[name]["data_offsets"][0]
    content[8 + length + start + at] = value
    path.write_bytes(content)
    return copy


@pytest.mark.parametrize(
    ("name", "at", "block"),
    [
        ("layers.4.attn.wq_b.scale", 3, r"\(1, 1\)"),
        ("layers.0.ffn.experts.2.w1.scale", geometries.HIDDEN // 32 * 70, r"\(70, 0\)"),
    ],
)
def test_a_damaged_scale_is_named(
    small: Path, config: ModelConfig, tmp_path: Path, name: str, at: int, block: str
) -> None:
    damaged = patched(small, tmp_path, name, at, 255)
    weight = name.removesuffix("scale") + "weight"
    with pytest.raises(CheckFailed, match=f"D045 {weight} has scale nan in block {block}"):
        load_shard(damaged, config=config, shard=Shard(rank=0, tp=1))


def test_what_cannot_be_read_is_named(small: Path, config: ModelConfig, tmp_path: Path) -> None:
    shard = Shard(rank=0, tp=1)
    with pytest.raises(CheckFailed, match=r"D044 .*index.json"):
        load_shard(tmp_path, config=config, shard=shard)
    (tmp_path / INDEX).write_bytes((small / INDEX).read_bytes())
    with pytest.raises(CheckFailed, match=r"D044 .*embed.weight in .*model-00001-of"):
        load_shard(tmp_path, config=config, shard=shard)
    for path in small.glob("*.safetensors"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckFailed, match=r"D044 .*embed.weight in .*model-00001-of"):
        load_shard(tmp_path, config=config, shard=shard)


def test_results_do_not_hold_the_files(small: Path, config: ModelConfig, tmp_path: Path) -> None:
    copy = patched(small, tmp_path, "norm.weight", 0, 0)
    loaded = load_shard(copy, config=config, shard=Shard(rank=0, tp=1))
    before = loaded["layers.0.hc_attn_fn"].clone()
    for path in copy.glob("*.safetensors"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert torch.equal(loaded["layers.0.hc_attn_fn"], before)
