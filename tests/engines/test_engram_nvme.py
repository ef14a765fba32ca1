"""Rows from row files in the place of SGLang's own table, bit for bit, in the released engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import engram_table as case
import pytest
import torch
from engram_rank import forked, rank_of
from engram_table import Files, Kinds
from sglang.srt.layers import engram

from dsv41.adapters.sglang import engram_nvme
from dsv41.geometry import PARTITIONS, partition

pytest_plugins = ("engram_table",)


def test_the_frame_puts_our_class_in_its_place(kinds: Kinds, files: Files) -> None:
    assert kinds.ours is not kinds.stock
    assert issubclass(kinds.ours, kinds.stock)
    with case.engine(files.checkpoint):
        layer = case.engram_layer(1)
    assert type(layer.embed) is kinds.ours
    embedded = {name for name, _ in layer.named_parameters() if name.startswith("embed.")}
    assert embedded == {"embed.weight", "embed.scale"}


def test_what_other_code_reads_is_there(kinds: Kinds, files: Files) -> None:
    made = case.ours(kinds, 1, files, rank=1, tp=3)
    assert (made.weight.shape, made.weight.dtype) == ((0, 256), torch.float8_e4m3fn)
    assert (made.scale.shape, made.scale.dtype) == ((0, 8), torch.float8_e8m0fnu)
    assert (made.dim, made.tp_size, made.host_table, made.peer) == (256, 3, None, None)
    assert made.rows == partition("weighted", engram=case.TABLES, layer_id=1, tp=3).local_rows(1)
    assert made.staged_by_scheduler is False
    assert getattr(made, "shared_host_table_without_ats", False) is False
    missing = set(vars(case.stock(kinds.stock, 1))) - set(vars(made))
    assert not missing, f"attributes of the release's class that ours lacks: {missing}"


@pytest.mark.parametrize("layer", case.TABLES.layer_ids)
@pytest.mark.parametrize("tp", case.SIZES)
def test_owned_rows_of_all_ranks_sum_to_the_stock_ones(
    kinds: Kinds, files: Files, monkeypatch: pytest.MonkeyPatch, tp: int, layer: int
) -> None:
    stock = case.stock(kinds.stock, layer)
    for seed, name in enumerate(PARTITIONS):
        monkeypatch.setenv("DSV41_ENGRAM_PARTITION", name)
        cut = partition(name, engram=case.TABLES, layer_id=layer, tp=tp)
        mine = [case.ours(kinds, layer, files, rank=rank, tp=tp) for rank in range(tp)]
        for dtype in (torch.int64, torch.int32):
            wanted = case.ids(layer, seed=seed, dtype=dtype)
            whole = stock._owned_rows(wanted)
            owner = torch.tensor(
                [cut.owner(row) if row >= 0 else -1 for row in wanted.flatten().tolist()]
            ).view(wanted.shape)
            assert len(set(owner.flatten().tolist())) == tp + 1, "ids of every rank, and padding"
            for rank, rows in enumerate(mine):
                found = rows._owned_rows(wanted)
                assert (found.shape, found.dtype) == (whole.shape, whole.dtype)
                owned = (owner == rank).unsqueeze(-1)
                assert torch.equal(case.bits(found), case.bits(whole).where(owned, 0))


def test_rows_are_the_stock_ones_rank_by_rank_where_both_cut_alike(
    kinds: Kinds, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "contiguous-columns" if hasattr(engram, "shard_range") else "contiguous-rows"
    monkeypatch.setenv("DSV41_ENGRAM_PARTITION", name)
    for rank in range(3):
        theirs = case.stock(kinds.stock, 1, rank=rank, tp=3)
        mine = case.ours(kinds, 1, files, rank=rank, tp=3)
        found, wanted = (rows._owned_rows(case.ids(1, seed=rank)) for rows in (mine, theirs))
        assert torch.equal(case.bits(found), case.bits(wanted))
        assert mine.rows == theirs.rows


def test_every_scale_code_that_is_a_number(
    kinds: Kinds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = {"low": 1, "high": 255}
    checkpoint = case.write(tmp_path / "checkpoint", **codes)
    rows = case.pack(checkpoint, tmp_path / "rows", sizes=(1,))
    monkeypatch.setenv("DSV41_PACKED_DIR", str(rows))
    with case.engine(checkpoint):
        mine = case.embedding(kinds.ours, 1)
    wanted = case.ids(1, tokens=200)
    theirs = case.stock(kinds.stock, 1, **codes)
    assert torch.equal(case.bits(mine._owned_rows(wanted)), case.bits(theirs._owned_rows(wanted)))


@pytest.mark.parametrize("shape", [(0, 24), (1, 24), (5,), (2, 3, 4)])
def test_any_shape_and_no_tokens_at_all(kinds: Kinds, files: Files, shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    wanted = torch.arange(7, 7 + count).view(shape)
    mine, theirs = case.ours(kinds, 14, files), case.stock(kinds.stock, 14)
    with case.engine(files.checkpoint):
        found = mine(wanted)
        assert found.shape == (*shape, 256)
        assert torch.equal(case.bits(found), case.bits(theirs(wanted)))


def test_a_graph_has_buffers_of_its_own(
    kinds: Kinds, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass may have ended with a lookup under way, and a replay waits for none."""
    mine = case.ours(kinds, 1, files)
    with case.engine(files.checkpoint):
        mine.finish_load("layer 1")
    ids = case.ids(1)
    mine._owned_rows(ids)
    assert (len(mine.staging.works), len(mine.of_graphs.works)) == (1, 0)
    monkeypatch.setattr(engram_nvme, "capturing", lambda _: True)
    captured = mine._owned_rows(ids)
    assert (len(mine.staging.works), len(mine.of_graphs.works)) == (1, 1)
    assert mine.staging.rows.data_ptr() != mine.of_graphs.rows.data_ptr()
    monkeypatch.undo()
    assert torch.equal(captured, mine._owned_rows(ids))


def test_batches_larger_than_the_staging_go_in_pieces(kinds: Kinds, files: Files) -> None:
    with case.engine(files.checkpoint, chunked_prefill_size=5, max_running_requests=2):
        mine = case.embedding(kinds.ours, 1)
        mine.finish_load(label="layer 1")
        assert mine.staging.capacity == 5 * 24
        wanted = case.ids(1, tokens=37)
        assert torch.equal(case.bits(mine(wanted)), case.bits(case.stock(kinds.stock, 1)(wanted)))


def test_the_layers_own_forward(kinds: Kinds, files: Files) -> None:
    hidden, wanted, extra = case.layer_input(14)
    with case.engine(files.checkpoint):
        mine, theirs = case.engram_layer(14), case.engram_layer(14)
        theirs.embed = case.stock(kinds.stock, 14)
        found, stock = (layer(hidden, wanted, None, **extra) for layer in (mine, theirs))
    assert torch.equal(case.bits(found), case.bits(stock))
    assert not torch.equal(case.bits(found), case.bits(hidden))


def test_three_ranks_add_up_over_gloo(kinds: Kinds, files: Files, tmp_path: Path) -> None:
    """The engine's own groups and all-reduce, in three processes; 0 tokens and more."""
    ended = forked(
        *(partial(rank_of, 3, rank, files, tmp_path) for rank in range(3)), folder=tmp_path
    )
    assert [child.status for child in ended] == [0, 0, 0], ended
    hidden, wanted, extra = case.layer_input(14)
    with case.engine(files.checkpoint):
        layer = case.engram_layer(14)
        layer.embed = case.stock(kinds.stock, 14)
        whole = layer.embed(wanted) + 0.0  # -0.0 + 0.0 is 0.0, in a sum of ranks as well
        through = layer(hidden, wanted, None, **extra)
    for rank in range(3):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found["type"] == "NvmeEngramEmbedding"
        assert found["none"].shape == (0, 24, 256)
        assert torch.equal(case.bits(found["rows"]), case.bits(whole))
        assert torch.equal(case.bits(found["forward"]), case.bits(through))
