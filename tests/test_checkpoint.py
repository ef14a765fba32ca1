"""The tiny checkpoint: its bytes, its form, how it is made and kept."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from dsv41.errors import UsageError
from dsv41.geometry import RELEASED_TOKEN_MAP
from dsv41.local.fixture import checkpoint, geometries, grid, tokenizer_files
from dsv41.local.fixture.tensors import specs
from dsv41.local.model.config import ModelConfig
from dsv41.rows import INDEX

# SHA-256 over names and SHA-256 of all files, the output head left random.
GOLDEN = "e1baec2aa72c9992e356a302ca3bc18f5664aa6ae2322c4949644ce9919d0b51"

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
        "import sys; from pathlib import Path; from dsv41.local.fixture.checkpoint import make\n"
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


def test_the_official_reader_finds_every_tensor(made: Path) -> None:
    wanted = {spec.name: spec for spec in specs(fixture_config())}
    index = json.loads((made / INDEX).read_text())
    assert set(index["weight_map"]) == set(wanted)
    assert index["metadata"]["total_size"] == sum(spec.bytes for spec in wanted.values())
    found = set()
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(made / name, framework="pt") as file:
            keys = list(file.keys())
            for key in keys:
                spec, part = wanted[key], file.get_slice(key)
                assert index["weight_map"][key] == name
                assert (part.get_dtype(), tuple(part.get_shape())) == (spec.dtype, spec.shape)
                found.add(key)
            some = [key for key in keys if wanted[key].count < 300_000][:20]
            for key in some:
                tensor, spec = file.get_tensor(key), wanted[key]
                assert tensor.dtype == TORCH_DTYPES[spec.dtype]
                expected = grid.draw(key, count=spec.count, grid=spec.grid, dtype=spec.dtype)
                assert tensor.contiguous().view(torch.uint8).numpy().tobytes() == bytes(expected)
    assert found == set(wanted)


def test_a_table_and_its_scales_lie_in_one_shard(made: Path) -> None:
    places = json.loads((made / INDEX).read_text())["weight_map"]
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
    assert changed == {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}
    content = (made / "token_map.i32").read_bytes()
    assert sha256(content).hexdigest() == RELEASED_TOKEN_MAP.int32_le
    assert np.frombuffer(content, "<i4").max() + 1 == 99092
    settings = json.loads((made / "tokenizer_config.json").read_text())
    for key, token in (("bos_token", 0), ("eos_token", 1), ("pad_token", 2)):
        assert settings[key] == after[token]


@pytest.mark.parametrize(
    ("model", "code"),
    [({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "D040"), ({}, "D041")],
)
def test_another_tokenizer_is_refused(tmp_path: Path, model: dict[str, object], code: str) -> None:
    names = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {
        "special": True
    }
    added = [{"id": token, "content": name} | flags for token, name in names.items()]
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    with pytest.raises(UsageError, match=code):
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
        "from dsv41.local.fixture import checkpoint\n"
        "checkpoint.tokenizer_files.tokenizer_files = lambda _: {}  # slow, and not the point\n"
        "try: checkpoint.ensure(Path(sys.argv[1]))\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limit_files,  # a real failing write; the child has one thread
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


def test_missing_tokenizer_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> Any:
        return None

    monkeypatch.setattr(tokenizer_files, "find_spec", nothing)
    with pytest.raises(UsageError, match="D048"):
        tokenizer_files.packed_tokenizer()
