"""The released weight loader with our class: tables stay unread; a wrong file ends the process."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engram_table as case
import pytest
import torch
from engram_rank import forked
from engram_table import Files, Kinds
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.model_loader import loader, weight_utils
from sglang.srt.models.deepseek_v4 import DeepseekV4ForCausalLM

from dsv41 import rows
from dsv41.errors import CheckFailed, UsageError
from dsv41.geometry import Shard, partition
from dsv41.rows import core
from rowsfile import crc32c

pytest_plugins = ("engram_table",)
MIB = 1 << 20
TABLE = 250 * MIB  # of 264: the kernel counts mapped pages in batches
ROWS = 1 << 20  # 256 MiB of weights, 8 MiB of scales
NAMES = ("layers.1.engram.embed.weight", "layers.1.engram.embed.scale")
ITERATORS: dict[str, dict[str, Any]] = {
    "buffered_multi_thread_safetensors_weights_iterator": {"max_workers": 1},
    "safetensors_weights_iterator": {},
}


@pytest.fixture(scope="module")
def large(files: Files, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A checkpoint of two files, one of them with a table of 264 MiB; its bytes are a hole."""
    header = {
        NAMES[0]: {"dtype": "F8_E4M3", "shape": [ROWS, 256], "data_offsets": [0, ROWS * 256]},
        NAMES[1]: {
            "dtype": "F8_E8M0",
            "shape": [ROWS, 8],
            "data_offsets": [ROWS * 256, ROWS * 264],
        },
    }
    text = json.dumps(header).encode()
    table = tmp_path_factory.mktemp("large") / case.TABLE_FILE
    with table.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + ROWS * 264)
    return [str(files.checkpoint / case.BODY), str(table)]


def touched() -> int:
    """Bytes that this process has read so far, and those of files that it has mapped and seen."""
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(io["rchar"]) + int(status["RssFile"].split()[0]) * 1024


def tensors(call: Callable[..., Any], large: list[str], **more: Any) -> tuple[dict[str, Any], int]:
    """All tensors that an iterator gives, and the bytes that it took."""
    before = touched()
    found = dict(call(large, **more))
    return found, touched() - before


@pytest.mark.parametrize("name", ITERATORS)
@pytest.mark.parametrize("disable_mmap", [False, True])
def test_tables_are_given_and_never_read(
    kinds: Kinds, large: list[str], name: str, *, disable_mmap: bool
) -> None:
    assert kinds.ours is not kinds.stock
    call = getattr(loader, name)
    found, took = tensors(call, large, disable_mmap=disable_mmap, **ITERATORS[name])
    assert set(found) == {*NAMES, "layers.0.attn_norm.weight"}
    assert found[NAMES[0]].shape == (ROWS, 256)
    assert torch.equal(found["layers.0.attn_norm.weight"], torch.ones(64, dtype=torch.bfloat16))
    assert took < 16 * MIB
    before = touched()
    assert int(found[NAMES[0]].view(torch.uint8).sum()) == 0
    assert touched() - before >= TABLE, "the measure sees a table that is read"


@pytest.mark.parametrize("name", ITERATORS)
def test_the_stock_iterator_reads_whole_files_without_mapping(
    kinds: Kinds, large: list[str], name: str
) -> None:
    assert kinds.ours is not kinds.stock
    stock = getattr(loader, name).__wrapped__
    before = touched()
    with suppress(KeyError):  # safetensors 0.8.0 reads the bytes and then knows no F8_E8M0
        list(stock(large, disable_mmap=True, **ITERATORS[name]))
    assert touched() - before >= TABLE


def test_files_with_tables_are_not_read_ahead(kinds: Kinds, large: list[str]) -> None:
    assert kinds.ours is not kinds.stock
    before = touched()
    for file in large:
        weight_utils._prefetch_checkpoint_file(file)
    assert touched() - before < 16 * MIB
    weight_utils._prefetch_checkpoint_file.__wrapped__(large[1])
    assert touched() - before >= TABLE


def body_of(layers: dict[int, Any]) -> Any:
    """The release's model class around Engram layers alone, with its own `load_weights`."""
    made = DeepseekV4ForCausalLM.__new__(DeepseekV4ForCausalLM)
    torch.nn.Module.__init__(made)
    made.config = SimpleNamespace(
        model_type="deepseek_v41", n_routed_experts=1, num_hidden_layers=40
    )
    made.quant_config = made.vision = None
    made.wo_a_fp8, made.num_fused_shared_experts = False, 0
    made.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    made.post_load_weights = made._prewarm_mhc_kernels = lambda **_: None
    made.model = torch.nn.Module()
    made.model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(15))
    for place, layer in layers.items():
        made.model.layers[place].engram = layer
    return made


def test_the_models_own_load_weights(
    kinds: Kinds, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    assert kinds.ours is not kinds.stock
    with case.engine(files.checkpoint):
        model = body_of({layer: case.engram_layer(layer) for layer in case.TABLES.layer_ids})
        paths = [str(files.checkpoint / name) for name in (case.TABLE_FILE, case.BODY)]
        caplog.set_level("INFO", logger="dsv41")
        model.load_weights(loader.safetensors_weights_iterator(paths))
    embeds = [model.model.layers[layer].engram.embed for layer in case.TABLES.layer_ids]
    assert [len(embed.weight) for embed in embeds] == [0, 0]
    assert all(embed.staging is not None for embed in embeds), "finish_load came"
    assert "engram_nvme layer 14" in caplog.text


def test_a_table_of_another_shape_is_refused(kinds: Kinds, files: Files) -> None:
    made = case.ours(kinds, 1, files)
    weights, scales = case.table(1)
    made.weight.weight_loader(made.weight, weights)
    made.scale.weight_loader(made.scale, scales)
    for parameter, wrong in (
        (made.weight, weights[:-1]),
        (made.scale, scales[:, :4]),
        (made.weight, weights.view(torch.uint8)),
    ):
        with pytest.raises(CheckFailed, match="D149 engram_nvme: layer 1: expected a table"):
            parameter.weight_loader(parameter, wrong)


def test_weights_are_not_replaced_while_it_serves(kinds: Kinds, files: Files) -> None:
    made = case.ours(kinds, 1, files)
    weights, _ = case.table(1)
    made.weight.weight_loader(made.weight, weights)
    with case.engine(files.checkpoint):
        made.finish_load("layer 1")
    with pytest.raises(UsageError, match="D153 engram_nvme: weights cannot be replaced"):
        made.weight.weight_loader(made.weight, weights)


@pytest.mark.parametrize("load_format", ["auto", "instanttensor"])
def test_the_engines_own_update_is_refused_before_it_loads(kinds: Kinds, load_format: str) -> None:
    assert kinds.ours is not kinds.stock
    update = weight_updater.WeightUpdater.update_weights_from_disk
    done, why = update(object(), "/another", load_format)  # the engine's own would ask the object
    assert not done
    assert why.startswith("D153 ")


@pytest.mark.parametrize("name", ["fastsafetensors", "runai_streamer"])
def test_a_loader_that_brings_whole_files_is_refused(kinds: Kinds, files: Files, name: str) -> None:
    refused = pytest.raises(UsageError, match=f"D147 .*{name}")
    with case.engine(files.checkpoint, load_format=name), refused:
        case.embedding(kinds.ours, 1)


def first_page(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change the header page of a row file, and give it the checksum of a sound one."""
    with path.open("r+b") as file:
        page = bytearray(file.read(4096))
        change(page)
        page[4092:] = crc32c(bytes(page[:4092])).to_bytes(4, "little")
        file.seek(0)
        file.write(page)


def missing(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)


def unfinished(path: Path) -> None:
    first_page(path, lambda page: page.__setitem__(72, page[72] & ~1))


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(4096, len(content), 4096):
        content[at + 100] ^= 1
    path.write_bytes(content)


def of_another_rank(path: Path) -> None:
    shutil.copy(path.with_name("engram-l1-r2of3-weighted.rows"), path)


def of_another_partition(path: Path) -> None:
    shutil.copy(path.with_name("engram-l1-r1of3-strided.rows"), path)


def of_another_layer(path: Path) -> None:
    shutil.copy(path.with_name("engram-l14-r1of3-weighted.rows"), path)


def of_another_rule(path: Path) -> None:
    """The right name, and rows that another rule gave this rank."""
    path.unlink()
    core.extension().pack(
        source=str(path.parents[1] / "checkpoint" / case.TABLE_FILE),
        target=str(path),
        layer=1,
        rank=1,
        tp=3,
        partition="weighted",
        total_rows=case.TABLES.rows(1),
        ranges=[
            (part.lo, part.hi, part.base)
            for part in partition("strided", engram=case.TABLES, layer_id=1, tp=3).ranges(1)
        ],
        revision="",
    )


def of_another_checkpoint(path: Path) -> None:
    other = case.write(path.parents[1] / "other", low=1, high=255)
    path.unlink()
    rows.pack(
        checkpoint=other,
        out=path.parent,
        engram=case.TABLES,
        partition="weighted",
        shard=Shard(rank=1, tp=3),
    )


def serve(kinds: Kinds, files: Files) -> None:
    """What a rank of the engine does: construct, load, look up."""
    with case.engine(files.checkpoint, rank=1, tp=3):
        made = case.embedding(kinds.ours, 1)
        made.finish_load(label="layer 1")
        made._owned_rows(case.ids(1))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (missing, "D029"),
        (cut_short, "D023"),
        (unfinished, "D023"),
        (damaged, "D024"),
        (of_another_rank, "D021"),
        (of_another_partition, "D021"),
        (of_another_layer, "D021"),
        (of_another_checkpoint, "D021"),
        (of_another_rule, "D146"),
    ],
)
def test_a_wrong_row_file_ends_the_process(
    kinds: Kinds,
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    code: str,
) -> None:
    mine = Files(checkpoint=tmp_path / "checkpoint", rows=tmp_path / "rows")
    shutil.copytree(files.checkpoint, mine.checkpoint)
    mine.rows.mkdir()
    for file in files.rows.glob("engram-*of3-*.rows"):
        shutil.copy(file, mine.rows)
    monkeypatch.setenv("DSV41_PACKED_DIR", str(mine.rows))
    (sound,) = forked(partial(serve, kinds, mine), folder=tmp_path)
    spoil(mine.rows / "engram-l1-r1of3-weighted.rows")
    (ended,) = forked(partial(serve, kinds, mine), folder=tmp_path)
    assert (sound.status, sound.says) == (0, "")
    assert ended.status == 1
    assert code in ended.says
    assert "engram-l1-r1of3-weighted.rows" in ended.says


def test_a_table_of_another_size_is_refused(kinds: Kinds, files: Files) -> None:
    with case.engine(files.checkpoint):
        count = case.TABLES.rows(1)
        with pytest.raises(
            CheckFailed, match=f"D146 .*rows in the table {count + 1}, found {count}"
        ):
            kinds.ours(count + 1, 256, 1)
        with pytest.raises(CheckFailed, match=r"D146 .*256 values, found 128"):
            kinds.ours(count, 128, 1)
