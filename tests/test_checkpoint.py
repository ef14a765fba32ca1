"""The tiny checkpoint: its bytes, its form, how it is made and kept."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import RELEASED_TOKEN_MAP, prime_walk
from dsv41.local import checkpoint, geometries, grid, tokenizer_files, writer
from dsv41.local.config import ModelConfig
from dsv41.local.head import Readout
from dsv41.local.tensors import TensorSpec, specs

# SHA-256 over names and SHA-256 of all files, the output head left zero.
GOLDEN = "ad9a4b784ea18c9ddb846ad9c9aa13dd003c65b2e53c0c9e2cb6081ab4a4c901"

TORCH_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder in which two processes have made the headless fixture at the same time.

    Before, it held a damaged checkpoint and what two killed processes had left behind.
    """
    folder = tmp_path_factory.mktemp("state")
    for name in ("fixture", ".fixture.making", ".fixture.old"):
        leftover = folder / "checkpoints" / name
        leftover.mkdir(parents=True)
        (leftover / "config.json").write_text("{}")
    code = (
        "import sys; from pathlib import Path; from dsv41.local.checkpoint import make\n"
        "print(make(Path(sys.argv[1]), 'fixture', readout=None))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert answers == [str(folder / "checkpoints" / "fixture")] * 2
    return folder


@pytest.fixture(scope="module")
def made(state: Path) -> Path:
    return state / "checkpoints" / "fixture"


def fixture_config() -> ModelConfig:
    return ModelConfig.from_dict(geometries.config("fixture"))


def test_the_bytes_are_the_same_on_every_machine(made: Path) -> None:
    assert checkpoint.digest(made) == GOLDEN
    assert json.loads((made / checkpoint.MARKER).read_text())["digest"] == GOLDEN
    assert sorted(path.name for path in made.parent.iterdir()) == [".fixture.lock", "fixture"]


def test_the_raw_stream_is_the_published_one() -> None:
    # Philox4x64-10 of key 0 and counter 0, from the known answers that Random123 publishes; numpy
    # counts before it draws
    known = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert np.random.Philox(key=0, counter=2**256 - 1).random_raw(4).tolist() == known


def test_a_stream_does_not_depend_on_its_length() -> None:
    long = grid.stream("layers.0.attn.wq_b.weight", 1000)
    assert long[:37].tobytes() == grid.stream("layers.0.attn.wq_b.weight", 37).tobytes()
    assert long.tobytes() != grid.stream("layers.1.attn.wq_b.weight", 1000).tobytes()


def test_the_official_reader_finds_every_tensor(made: Path) -> None:
    wanted = {spec.name: spec for spec in specs(fixture_config())}
    index = json.loads((made / writer.INDEX).read_text())
    assert set(index["weight_map"]) == set(wanted)
    assert index["metadata"]["total_size"] == sum(spec.bytes for spec in wanted.values())
    found = set()
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(made / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                spec, part = wanted[key], file.get_slice(key)
                assert index["weight_map"][key] == name
                assert (part.get_dtype(), tuple(part.get_shape())) == (spec.dtype, spec.shape)
                found.add(key)
            some = [key for key in file.keys() if wanted[key].count < 300_000][:20]  # noqa: SIM118
            for key in some:
                tensor, spec = file.get_tensor(key), wanted[key]
                assert tensor.dtype == TORCH_DTYPES[spec.dtype]
                expected = grid.draw(key, count=spec.count, grid=spec.grid, dtype=spec.dtype)
                assert tensor.contiguous().view(torch.uint8).numpy().tobytes() == bytes(expected)
    assert found == set(wanted)


def test_a_table_and_its_scales_lie_in_one_shard(made: Path) -> None:
    places = json.loads((made / writer.INDEX).read_text())["weight_map"]
    for layer, rows in zip((1, 2), (122412, 127932), strict=True):
        shard = places[f"layers.{layer}.engram.embed.weight"]
        assert places[f"layers.{layer}.engram.embed.scale"] == shard
        with safe_open(made / shard, framework="pt") as file:
            scale = file.get_slice(f"layers.{layer}.engram.embed.scale")
            assert scale.get_shape() == [rows, 8]
            assert set(scale[:1000].view(torch.uint8).unique().tolist()) == set(range(116, 124))
    assert len(set(places.values())) == 4


def test_the_tokenizer_is_the_released_one(made: Path) -> None:
    packed = tokenizer_files.packed_tokenizer()
    assert (
        sha256(packed.read_bytes()).hexdigest()
        == "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
    )
    before, after = (
        {token["id"]: token["content"] for token in json.loads(path.read_text())["added_tokens"]}
        for path in (packed, made / "tokenizer.json")
    )
    changed = {token: name for token, name in after.items() if before[token] != name}
    assert changed == {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}  # noqa: RUF001
    content = (made / "token_map.i32").read_bytes()
    assert sha256(content).hexdigest() == RELEASED_TOKEN_MAP.int32_le
    assert np.frombuffer(content, "<i4").max() + 1 == 99092
    settings = json.loads((made / "tokenizer_config.json").read_text())
    for key, token in (("bos_token", 0), ("eos_token", 1), ("pad_token", 2)):
        assert settings[key] == after[token]


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = json.loads(tokenizer_files.packed_tokenizer().read_text(encoding="utf-8"))
    vocab, other = tokenizer["model"]["vocab"], tmp_path / "tokenizer.json"
    vocab["Hello"], vocab["fox"] = vocab["fox"], vocab["Hello"]
    other.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(UsageError, match="D040"):
        tokenizer_files.tokenizer_files(other)
    del vocab["Hello"]
    other.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(UsageError, match="D041"):
        tokenizer_files.tokenizer_files(other)


def test_what_is_whole_is_left_alone(state: Path, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.iterdir()}
    assert checkpoint.make(state, "fixture", readout=None) == made
    assert {path: path.stat().st_mtime_ns for path in made.iterdir()} == before


@pytest.mark.parametrize("damage", ["none", "flip", "cut", "gone", "extra", "marker", "recipe"])
def test_every_damage_is_seen(tmp_path: Path, damage: str) -> None:
    names = {"a": b"some bytes", "b": b"others"}
    marker = {"recipe": "r", "files": {n: sha256(c).hexdigest() for n, c in names.items()}}
    for name, content in (names | {checkpoint.MARKER: json.dumps(marker).encode()}).items():
        (tmp_path / name).write_bytes(content)
    match damage:
        case "flip":
            (tmp_path / "b").write_bytes(b"otherr")
        case "cut":
            (tmp_path / "b").write_bytes(b"other")
        case "gone":
            (tmp_path / "b").unlink()
        case "extra":
            (tmp_path / "c").touch()
        case "marker":
            (tmp_path / checkpoint.MARKER).write_bytes(b"{")
    recipe = "s" if damage == "recipe" else "r"
    assert checkpoint.is_whole(tmp_path, recipe) == (damage == "none")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(UsageError, match=r"D043 .*checkpoints/fixture: Not a directory") as caught:
        checkpoint.ensure(blocked)
    assert "--state-dir" in caught.value.fix


def test_too_little_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UsageError, match=r"D043 .*\d{9} bytes are needed, 1000 are free"):
        checkpoint.ensure(tmp_path)
    assert not (tmp_path / "checkpoints" / "fixture").exists()


def limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_write_that_fails_midway_leaves_nothing_in_place(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dsv41.errors import UsageError\n"
        "from dsv41.local import checkpoint\n"
        "try: checkpoint.ensure(Path(sys.argv[1]))\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limit_files,  # noqa: PLW1509 - a real failing write; the child has one thread
    )
    assert done.stdout.startswith("D043 ")
    assert "File too large" in done.stdout
    assert not (tmp_path / "checkpoints" / "fixture").exists()


def test_the_configuration_is_of_the_released_form(made: Path) -> None:
    config, raw = ModelConfig.from_file(made), geometries.config("fixture")
    assert config.raw == raw
    assert config.engram.layer_ids == checkpoint.FIXTURE_ENGRAM_LAYERS == (1, 2)
    assert [config.engram.rows(layer) for layer in (1, 2)] == [122412, 127932]
    scaling = config.rope_scaling
    assert scaling.factor * scaling.original_max_position_embeddings == 4096
    assert config.max_position_embeddings == 4096
    assert config.compress_ratios[: config.num_hidden_layers] == (0, 0, 2, 2, 1, 1)
    assert raw["vision_config"]["num_hidden_layers"] == 0
    assert raw["text_config"]["num_nextn_predict_layers"] == 0
    generation = json.loads((made / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "cannot be read"),
        ("{}", "no text_config"),
        ('{"text_config": {"vocab_size": 1}}', "lacks text_config keys: hidden_size"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=f"D042 .*config.json.*{says}"):
        ModelConfig.from_file(tmp_path)


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
    everything = list(specs(config))
    assert round(sum(spec.bytes for spec in everything) / 1e6) == 748
    layer = [spec for spec in everything if spec.name.startswith("layers.4.attn")]
    shards = writer.shard_tensors(layer, limit=2 << 20)
    writer.write_shards(tmp_path, shards, fill=filled)
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
        assert shapes == {s.name: list(s.shape) for s in layer if s.name in shapes}
    assert len(list(tmp_path.glob("*.safetensors"))) == len(shards) > 1


def filled(spec: TensorSpec) -> bytes | memoryview:
    return grid.draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype)


def test_values_are_exact_in_their_format() -> None:
    for spec in {(s.grid, s.dtype): s for s in specs(fixture_config())}.values():
        if spec.grid.kind == "zero":
            continue
        raw = torch.from_numpy(grid.table(spec.grid, spec.dtype).copy())
        if spec.dtype not in ("F32", "BF16"):
            assert raw.shape == (256, 1)
            continue
        values = raw.view(TORCH_DTYPES[spec.dtype])[:, 0].double()
        step = 2.0**-7 if spec.grid.kind == "near_one" else 2.0**spec.grid.exponent
        units = (values / step).tolist()
        assert all(unit == int(unit) and abs(unit) <= 255 for unit in units)
        assert Counter(units).most_common(1)[0][1] <= 9


def head_file(path: Path, ids: list[int], rows: torch.Tensor) -> Path:
    save_file({"token_ids": torch.tensor(ids, dtype=torch.int32), "rows": rows}, path)
    return path


def test_the_fitted_head_fills_its_rows(tmp_path: Path) -> None:
    rows = torch.randn(3, 128, generator=torch.Generator().manual_seed(3)).bfloat16()
    readout = Readout.from_file(head_file(tmp_path / "head.safetensors", [5, 129279, 0], rows))
    content = bytearray(readout.weight(fixture_config()))
    head = torch.frombuffer(content, dtype=torch.bfloat16).view(129280, 128)
    assert torch.equal(head[[5, 129279, 0]], rows)
    assert head.any(1).sum() == 3


@pytest.mark.parametrize(
    ("ids", "width", "says"),
    [
        ([1, 1], 128, "or one twice"),
        ([1], 128, "1 token ids"),
        ([1, 129280], 128, ""),
        ([1, 2], 64, ""),
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
    with pytest.raises(ValueError, match="'other' is none of fixture, gpu"):
        geometries.config("other")


def test_missing_tokenizer_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> Any:
        return None

    monkeypatch.setattr(tokenizer_files, "find_spec", nothing)
    with pytest.raises(UsageError, match="D048"):
        tokenizer_files.packed_tokenizer()
