"""Weights read by the plan: byte for byte what the released loader brings, and no byte beyond."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import sharded_model as case
import torch
from hooked import hooked
from page_cache import cached, forget
from sglang.srt.model_loader import loader
from sglang.srt.models.deepseek_v4 import DeepseekV4ForCausalLM
from sglang.srt.models.deepseek_v4_dspark import DeepseekV4ForCausalLMDSpark

from dsv41.adapters import fast_reader
from dsv41.adapters.read_plan import Place, Plan, Stored, headers
from dsv41.adapters.sglang import fast_load, tp_pad
from dsv41.errors import CheckFailed, UsageError
from dsv41.local.fixture import geometries, grid, tensors, writer
from dsv41.local.model.config import ModelConfig

MODELS = {"target": DeepseekV4ForCausalLM, "draft": DeepseekV4ForCausalLMDSpark}
BUFFERED = "buffered_multi_thread_safetensors_weights_iterator"
# ranks, groups of experts, and the ranks that are looked at
SPLITS = {
    "tp1": (1, 1, (0,)),
    "tp3": (3, 1, (0, 2)),
    "tp3-ep3": (3, 3, (1, 2)),
    "tp4": (4, 1, (3,)),
}
SPLITS |= {"tp4-ep2": (4, 2, (0, 3))}

# config.json of the released checkpoint, what differs from the maker's
RELEASED: dict[str, Any] = {
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "moe_intermediate_size": 2304,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_target_layer_ids": [37, 38, 39],
    "candidate_source_layer_id": 20,
}
# bytes that rank 0 reads, by ranks and groups of experts; without the vision tower
BYTES = {
    (1, 1, "target"): 298_725_371_328,
    (1, 1, "draft"): 7_932_885_384,
    (3, 1, "target"): 167_985_679_808,
    (3, 1, "draft"): 4_677_010_824,
    (4, 1, "target"): 150_382_715_328,
    (4, 1, "draft"): 4_175_562_504,
    (4, 2, "target"): 102_253_076_928,
    (4, 2, "draft"): 2_972_321_544,
}


@pytest.fixture(scope="module", autouse=True)
def wide() -> Iterator[None]:
    """Experts of 384 columns, which three and four ranks cut into whole blocks."""
    with pytest.MonkeyPatch.context() as patch:
        plain = case.raw

        def raw() -> dict[str, Any]:
            found = plain()
            found["text_config"]["moe_intermediate_size"] = 384
            return found

        patch.setattr(case, "raw", raw)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A whole checkpoint without Engram, three draft stages with it, in shards of 8 MiB."""
    folder = tmp_path_factory.mktemp("checkpoint")
    config = case.raw()
    shards = writer.shard_tensors(tensors.specs(ModelConfig.from_dict(config)), limit=8 << 20)
    writer.write_shards(
        folder,
        shards,
        fill=lambda s: grid.draw(s.name, count=s.count, grid=s.grid, dtype=s.dtype),
    )
    case.publish(folder)
    return sorted(folder.glob("*.safetensors"))


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    case.stand_aside(monkeypatch)
    fast_load._loaded.clear()


def loaded(
    part: str, files: list[Path], number: int, tp: int, ep: int, name: str = BUFFERED
) -> Any:
    """A model of one rank, loaded from files by the engine's own loader as it then is."""
    with case.rank(number, tp, ep=ep):
        torch.manual_seed(1)
        found = MODELS[part](copy.copy(case.config()), case.quantization())
        for value in found.parameters():  # what nobody loads is the same in both
            value.data.reshape(-1).view(torch.uint8).fill_(0x55)
        kinds: dict[str, Any] = {"max_workers": 1} if name == BUFFERED else {}
        found.load_weights(getattr(loader, name)([str(file) for file in files], **kinds))
    return found


@contextmanager
def fast(tp: int, **more: str) -> Iterator[None]:
    padding = {"DSV41_TP_PAD": "1"} if tp == 3 else {}
    adapters = [tp_pad.ADAPTER] if padding else []
    with hooked(fast_load.ADAPTER, *adapters, DSV41_FAST_LOAD="1", **padding, **more):
        yield


@contextmanager
def stock(tp: int) -> Iterator[None]:
    if tp != 3:
        yield
        return
    with hooked(tp_pad.ADAPTER, DSV41_TP_PAD="1"):
        yield


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every reader that a load made."""
    found: list[Any] = []
    made = fast_reader.Reader

    def reader(*args: Any, **kwargs: Any) -> Any:
        found.append(made(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(fast_load, "Reader", reader)
    return found


@pytest.mark.parametrize("part", MODELS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_same_bytes_as_the_stock_loader(
    files: list[Path], readers: list[Any], part: str, split: str
) -> None:
    tp, ep, numbers = SPLITS[split]
    everything = sum(file.stat().st_size for file in files)
    for number in numbers:
        with stock(tp):
            theirs = case.parameters(loaded(part, files, number, tp, ep))
        with fast(tp):
            ours = case.parameters(loaded(part, files, number, tp, ep))
        assert ours.keys() == theirs.keys()
        different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
        assert not different
        held = readers[-1].held
        assert held.faulted == 0
        assert 0 < held.read < everything
        assert held.bytes == 0


def test_the_other_iterator(files: list[Path], readers: list[Any]) -> None:
    """The one that the engine takes with enable_multithread_load off."""
    name = "safetensors_weights_iterator"
    theirs = case.parameters(loaded("draft", files, 0, 1, 1, name))
    with fast(1):
        ours = case.parameters(loaded("draft", files, 0, 1, 1, name))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert len(readers) == 1
    assert len(readers[0].sources) < len(files), "files without the draft stay closed"


def test_a_byte_that_differs_is_seen(files: list[Path], tmp_path: Path) -> None:
    """The comparison above tells one changed byte of an expert apart."""
    for file in (*files, files[0].parent / "config.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    copies = sorted(tmp_path.glob("*.safetensors"))
    path, stored = next(
        (path, stored)
        for path in copies
        for stored in headers(path)
        if stored.name == "mtp.1.ffn.experts.2.w2.weight"
    )
    with path.open("r+b") as out:
        out.seek(stored.start + 100)
        byte = out.read(1)[0]
        out.seek(stored.start + 100)
        out.write(bytes([byte ^ 1]))
    theirs = case.parameters(loaded("draft", files, 0, 1, 1))
    with fast(1):
        ours = case.parameters(loaded("draft", copies, 0, 1, 1))
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert different == ["stages.1.mlp.experts.w2_weight"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_routed_experts": 11}, "expected 11 experts, found layers.0.ffn.experts.11"),
        ({"moe_intermediate_size": 96}, r"expected I8 \[96, 32\], found layers.0.ffn.experts.0"),
        ({"head_dim": 64}, r"expected F8_E4M3 \[1024, 64\], found layers.0.attn.wq_b"),
    ],
)
def test_a_checkpoint_of_another_form_is_refused(
    files: list[Path], tmp_path: Path, change: dict[str, int], says: str
) -> None:
    config = case.raw()
    config["text_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    for file in files:
        (tmp_path / file.name).symlink_to(file)
    links = sorted(tmp_path.glob("*.safetensors"))
    with fast(1), pytest.raises(CheckFailed, match=says) as caught:
        loaded("target", links, 0, 1, 1)
    assert caught.value.code == "D485"


def test_a_file_that_ends_early_is_refused(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(case.raw()))
    (tmp_path / "a.safetensors").write_bytes(files[0].read_bytes()[:-1])
    with fast(1), pytest.raises(CheckFailed, match="ends beyond its") as caught:
        loaded("target", [tmp_path / "a.safetensors"], 0, 1, 1)
    assert caught.value.code == "D485"


def test_ways_past_it_are_refused(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with fast(1):
        iterate = getattr(loader, BUFFERED)
        with pytest.raises(UsageError, match="neither target nor draft"):
            next(iterate([str(files[0])], max_workers=1))
        with pytest.raises(UsageError, match="reads whole files ahead"):
            next(iterate([str(files[0])], max_workers=1, prefetch=True))
        made = DeepseekV4ForCausalLM.__new__(DeepseekV4ForCausalLM)
        monkeypatch.setattr(fast_load, "published", lambda *_: "fastsafetensors")
        with pytest.raises(UsageError, match="--load-format fastsafetensors") as caught:
            made.load_weights(iter(()))
        assert caught.value.code == "D487"
        monkeypatch.undo()
    with pytest.raises(UsageError, match="the draft's weights came another way"):
        fast_load.load_draft(lambda _: None, None)
    with pytest.raises(UsageError, match="expected at least 1"):
        fast_load.check({"DSV41_FAST_LOAD_INFLIGHT_GB": "0"})


def test_the_bytes_of_the_released_checkpoint() -> None:
    """By its names and shapes: what a rank of four reads is what the recipe's loader does."""
    config = geometries.config("gpu-dspark")
    config["text_config"] |= RELEASED
    stored = [
        Stored(name=spec.name, dtype=spec.dtype, shape=spec.shape, start=0)
        for spec in tensors.specs(ModelConfig.from_dict(config))
    ]
    drafted = [one for one in stored if one.name.startswith("mtp.")]
    assert len(drafted) == 2401  # sglang's public fast loader counts as many
    read = {}
    for tp, ep in ((1, 1), (3, 1), (4, 1), (4, 2)):
        ranks, experts, inner = (0, tp), (0, ep), (0, tp // ep)
        parts: tuple[tuple[Literal["target", "draft"], Any], ...]
        parts = (("target", stored), ("draft", drafted))
        for part, given in parts:
            place = Place(part=part, padded=tp == 3, tp=ranks, attn=ranks, ep=experts, inner=inner)
            plan = Plan(config, place)
            wanted = (plan.of_tensor(one) for one in given)
            read[tp, ep, part] = sum(one.last - one.first for one in wanted)
    assert read == BYTES
    # 155.2 GB of a rank of four with one group (MiaAI-Lab), of which 0.8 are the vision tower's
    vision = 32 * (4 * 1024**2 + 3 * 1024 * 2816) * 2
    assert abs(read[4, 1, "target"] + read[4, 1, "draft"] + vision - 155.2e9) < 0.3e9


def test_the_page_cache_stays_as_it_was(files: list[Path]) -> None:
    everything = sum(file.stat().st_size for file in files)
    forget(files)
    assert cached(files) == 0
    with fast(1):
        loaded("target", files, 0, 4, 1)
    assert cached(files) < everything // 10, "headers, and what the kernel reads ahead of them"
    forget(files)
    loaded("target", files, 0, 4, 1)
    assert cached(files) > everything // 2, "the stock loader fills it"
