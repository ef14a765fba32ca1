"""What the tiny checkpoint is made of: names, shapes, exact values, the fitted head."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dsv41.errors import CheckFailed
from dsv41.geometry import prime_walk
from dsv41.local.fixture import checkpoint, geometries, grid, writer
from dsv41.local.fixture.head import Readout
from dsv41.local.fixture.tensors import TensorSpec, specs
from dsv41.local.model.config import ModelConfig

GPU_DIGEST = "cba529da70171680c0654b56f10cd3000af1c24504730d7431bee36ca43f7a3c"
FLOATS = {"BF16": torch.bfloat16, "F32": torch.float32}


def fixture_config() -> ModelConfig:
    return ModelConfig.from_dict(geometries.config("fixture"))


def test_the_raw_stream_is_the_published_one() -> None:
    # Philox4x64-10 of key 0 and counter 0, from the known answers that Random123 publishes; numpy
    # counts before it draws
    known = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert np.random.Philox(key=0, counter=2**256 - 1).random_raw(4).tolist() == known


def test_a_stream_does_not_depend_on_its_length() -> None:
    long = grid.stream("layers.0.attn.wq_b.weight", 1000)
    assert long[:37].tobytes() == grid.stream("layers.0.attn.wq_b.weight", 37).tobytes()
    assert long.tobytes() != grid.stream("layers.1.attn.wq_b.weight", 1000).tobytes()


def released_config() -> ModelConfig:
    raw = geometries.config("fixture")
    raw["text_config"] |= {
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "head_dim": 512,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "moe_intermediate_size": 2304,
        "n_routed_experts": 384,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
    }
    return ModelConfig.from_dict(raw)


def test_names_and_shapes_at_the_released_sizes() -> None:
    found = {spec.name: (spec.dtype, spec.shape) for spec in specs(released_config())}
    delimiters = {"image_start", "image_end", "image_newline"}
    # 96,085 tensors; 266 of vision, aligner and delimiters; three draft layers of 30 tensors and
    # 128 experts of 6, and 7 of the drafts' own
    assert len(found) - len(delimiters) == 96085 - 266 - 3 * (30 + 128 * 6) - 7
    assert delimiters < set(found)
    for name, dtype, shape in (
        ("layers.0.attn.wq_b.scale", "F8_E8M0", (1024, 40)),
        ("layers.0.attn.wo_a.weight", "F8_E4M3", (8192, 4096)),
        ("layers.39.attn.wo_b.scale", "F8_E8M0", (160, 256)),
        ("layers.14.engram.wkv.weight", "F8_E4M3", (25600, 6144)),
        ("layers.14.engram.wkv.scale", "F8_E8M0", (800, 192)),
        ("layers.14.engram.embed.scale", "F8_E8M0", (384016682, 8)),
        ("layers.1.engram.q_weight", "BF16", (4, 5120)),
        ("layers.7.ffn.experts.383.w1.weight", "I8", (2304, 2560)),
        ("layers.7.ffn.experts.383.w2.scale", "F8_E8M0", (5120, 72)),
        ("layers.7.ffn.gate.bias_vl", "F32", (384,)),
        ("layers.7.hc_attn_fn", "F32", (24, 20480)),
        ("layers.36.attn.indexer.weights_proj.weight", "BF16", (32, 5120)),
        ("layers.20.attn.indexer.wk.weight", "BF16", (128, 512)),
        ("layers.14.attn.compressor.wgate.weight", "BF16", (512, 5120)),
        ("head.weight", "BF16", (129280, 5120)),
    ):
        assert found[name] == (dtype, shape)
    assert "layers.20.attn.compressor.wgate.weight" not in found
    assert "layers.24.attn.indexer.wk.weight" not in found


def test_the_geometry_for_gpu_kernels(tmp_path: Path) -> None:
    raw = geometries.config("gpu")
    text, config = raw["text_config"], ModelConfig.from_dict(raw)
    kernels = {"head_dim": 512, "qk_rope_head_dim": 64, "num_key_value_heads": 1, "hc_mult": 4}
    kernels |= {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 512}
    assert {key: text[key] for key in kernels} == kernels
    assert config.num_attention_heads // config.o_groups == 8
    primes = prime_walk(5000, 48)
    assert list(config.engram_num_embeddings) == [sum(primes[:24]), sum(primes[24:])]
    everything = checkpoint.tensors_of("gpu")
    # 786 tensors: as many as vLLM 0.33.0 was seen to map to its 209 parameters, none left over
    assert (len(everything), sum(spec.bytes for spec in everything)) == (786, 748_239_184)
    layer = [spec for spec in everything if spec.name.startswith("layers.4.attn")]
    shards = writer.shard_tensors(layer, limit=2 << 20)
    writer.write_shards(tmp_path, shards, fill=filled)
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in list(file.keys())}
        assert shapes == {s.name: list(s.shape) for s in layer if s.name in shapes}
    assert len(list(tmp_path.glob("*.safetensors"))) == len(shards) > 1


def test_the_geometry_with_drafts() -> None:
    plain, drafts = checkpoint.tensors_of("gpu"), checkpoint.tensors_of("gpu-dspark")
    assert [spec for spec in drafts if not spec.name.startswith("mtp.")] == plain
    found = {spec.name: (spec.dtype, spec.shape) for spec in drafts if spec not in plain}
    assert len(found) == 1024 - 786
    for name, dtype, shape in (
        ("mtp.0.main_proj.weight", "F8_E4M3", (1024, 3072)),
        ("mtp.0.main_norm.weight", "BF16", (1024,)),
        ("mtp.1.attn.attn_sink", "F32", (16,)),
        ("mtp.1.ffn.experts.7.w2.weight", "I8", (1024, 128)),
        ("mtp.2.ffn.gate.weight", "BF16", (8, 1024)),
        ("mtp.2.markov_head.embed.weight", "BF16", (129280, 64)),
        ("mtp.2.markov_head.head.weight", "BF16", (129280, 64)),
        ("mtp.2.confidence_head.proj.weight", "F32", (1, 1088)),
    ):
        assert found[name] == (dtype, shape)
    text = geometries.config("gpu-dspark")["text_config"]
    text["num_nextn_predict_layers"] = 0
    assert text == geometries.config("gpu")["text_config"]


def test_the_values_of_the_geometry_for_gpus_are_those_of_the_golden_answers() -> None:
    # all tensors by name, grid and shape, and the bytes of two layers' and the drafts' small ones
    digest = sha256()
    for spec in checkpoint.tensors_of("gpu-dspark"):
        digest.update(repr(spec).encode())
        if spec.bytes <= 1 << 16 and spec.name.startswith(("layers.1.", "layers.4.", "mtp.2.")):
            digest.update(filled(spec))
    assert digest.hexdigest() == GPU_DIGEST


def filled(spec: TensorSpec) -> bytes | memoryview:
    return grid.draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype)


def test_values_are_exact_in_their_format() -> None:
    for spec in {(s.grid, s.dtype): s for s in specs(fixture_config())}.values():
        raw = torch.from_numpy(grid.table(spec.grid, spec.dtype).copy())
        if spec.dtype not in FLOATS:
            assert raw.shape == (256, 1)
            continue
        values = raw.view(FLOATS[spec.dtype])[:, 0].double()
        step = 2.0**-7 if spec.grid.kind == "near_one" else 2.0**spec.grid.exponent
        units = (values / step).tolist()
        assert all(unit == int(unit) and abs(unit) <= 255 for unit in units)
        assert Counter(units).most_common(1)[0][1] <= 9


def head_file(path: Path, ids: list[int], rows: torch.Tensor) -> Path:
    save_file({"token_ids": torch.tensor(ids, dtype=torch.int32), "rows": rows}, path)
    return path


def test_the_fitted_head_fills_its_rows(tmp_path: Path) -> None:
    rows = torch.randn(3, geometries.HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16()
    readout = Readout.from_file(head_file(tmp_path / "head.safetensors", [5, 129279, 0], rows))
    content = bytearray(readout.weight(fixture_config()))
    head = torch.frombuffer(content, dtype=torch.bfloat16).view(129280, -1)
    assert torch.equal(head[[5, 129279, 0]], rows)
    assert head.any(1).sum() == 3


@pytest.mark.parametrize(
    ("ids", "width", "says"),
    [
        ([1, 1], geometries.HIDDEN, "or one twice"),
        ([1], geometries.HIDDEN, "1 token ids"),
        ([1, 129280], geometries.HIDDEN, ""),
        ([1, 2], 96, ""),
    ],
)
def test_a_head_that_does_not_fit(tmp_path: Path, ids: list[int], width: int, says: str) -> None:
    path = head_file(tmp_path / "head.safetensors", ids, torch.ones(2, width).bfloat16())
    with pytest.raises(CheckFailed, match=f"D047 .*{says}"):
        Readout.from_file(path).weight(fixture_config())


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_head(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "head.safetensors").write_bytes(content)
    with pytest.raises(CheckFailed, match="D047"):
        Readout.from_file(tmp_path / "head.safetensors")


def test_an_unknown_geometry() -> None:
    with pytest.raises(ValueError, match="'other' is none of fixture, gpu, gpu-dspark"):
        geometries.config("other")


def test_the_committed_head_fits_the_fixture() -> None:
    readout = checkpoint.committed_readout("fixture")
    assert readout is not None
    assert len(readout.weight(fixture_config())) == 129280 * geometries.HIDDEN * 2
    assert checkpoint.committed_readout("gpu") is None
