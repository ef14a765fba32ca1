"""Lookups: every row exact, every wrong argument and every damaged or foreign file refused."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dsv41 import rows
from dsv41.geometry import PARTITIONS, Shard
from rowsfix import (
    OWNED,
    RIGHT,
    ROWS_ERRORS,
    SMALL,
    WAYS,
    Checkpoint,
    Way,
    arrays,
    draw_ids,
    expected,
    pack_all,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_all(checkpoint, tmp_path_factory.mktemp("rows"), PARTITIONS)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / rows.file_name(**RIGHT)


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


@pytest.fixture
def store(path: Path, way: Way) -> Iterator[Any]:
    store = way.open(path)
    yield store
    store.close()


# up to 4 reads run inline, up to 2048 ids are hashed, more are sorted
@pytest.mark.parametrize("count", [0, 1, 3, 48, 2048, 2049, 20_000])
def test_rows_are_exact_and_all_others_zero(checkpoint: Checkpoint, store: Any, count: int) -> None:
    ids = draw_ids(count, seed=count)
    weights, scales = arrays(count)
    store.lookup(ids, weights, scales)
    right_weights, right_scales = expected(checkpoint, ids)
    assert (weights == right_weights).all()
    assert (scales == right_scales).all()


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_ranks_together_give_the_whole_table(
    checkpoint: Checkpoint, folder: Path, name: str
) -> None:
    ids = draw_ids(5000)
    total_weights, total_scales = np.zeros((5000, 256), int), np.zeros((5000, 8), int)
    for rank in range(3):
        stores = rows.open_shard(
            rows_dir=folder,
            engram=SMALL,
            partition=name,
            shard=Shard(rank=rank, tp=3),
            checkpoint=checkpoint.path,
        )
        weights, scales = arrays(5000)
        stores[1].lookup(ids, weights, scales)
        total_weights += weights
        total_scales += scales
    padding = (ids < 0)[:, None]
    assert (total_weights == np.where(padding, 0, checkpoint.weights[1][ids])).all()
    assert (total_scales == np.where(padding, 0, checkpoint.scales[1][ids])).all()


def test_the_store_says_what_it_is(store: Any) -> None:
    assert (store.layer, store.rank, store.tp, store.partition) == (1, 1, 3, "weighted")
    assert store.local_rows == OWNED.local_rows(1)
    assert store.total_rows == SMALL.rows(1)


def test_equal_rows_are_read_once_and_counted(store: Any, way: Way) -> None:
    ids = np.concatenate([draw_ids(3000), draw_ids(3000), [-1, -9]])
    weights, scales = arrays(len(ids))
    before = store.stats()
    store.lookup(ids, weights, scales)
    after = store.stats()
    mine = OWNED.locals_of(1, ids[ids >= 0])
    wanted = {
        "lookups": len(ids),
        "owned": (mine >= 0).sum(),
        "foreign": (mine < 0).sum(),
        "padding": (ids < 0).sum(),
        "unique": len(set(mine[mine >= 0])),
        "device_reads": len(set(mine[mine >= 0])),
        "device_bytes": 4096 * len(set(mine[mine >= 0])),
        "batches": 1,
        "crc_failures": 0,
        "io_errors": 0,
    }
    assert {name: after[name] - before[name] for name in wanted} == wanted
    assert after["zero_filled"] == after["foreign"] + after["padding"]
    assert after["engine"] == ("uring" if way.engine == "auto" else way.engine)
    assert after["refusals"] == []
    assert after["direct"] is True
    assert after["wall_seconds"]["count"] == before["wall_seconds"]["count"] + 1
    assert 0 < after["wall_seconds"]["max"] < 60
    assert 0 < after["cpu_seconds"]["max"] < 60
    assert after["batch_size"]["max"] == len(ids)


@pytest.mark.parametrize("bad", [SMALL.rows(1), SMALL.rows(1) + 7, 2**62])
def test_an_id_past_the_table_is_an_error_and_nothing_is_read(store: Any, bad: int) -> None:
    ids = np.append(draw_ids(50), bad)
    weights, scales = arrays(51)
    before = store.stats()["device_reads"]
    with pytest.raises(ROWS_ERRORS, match=f"id {bad} at position 50") as error:
        store.lookup(ids, weights, scales)
    assert error.value.kind == "range"
    assert (weights == 0xAA).all()
    assert store.stats()["device_reads"] == before
    store.lookup(ids[:50], weights[:50], scales[:50])


def read_only(array: Bytes) -> Bytes:
    array.setflags(write=False)
    return array


IDS = np.zeros(4, np.int64)
WEIGHTS, SCALES = arrays(4)
WRONG: dict[str, tuple[Any, Any, Any]] = {
    "int32 ids": (IDS.astype(np.int32), WEIGHTS, SCALES),
    "uint64 ids": (IDS.astype(np.uint64), WEIGHTS, SCALES),
    "float ids": (IDS.astype(np.float64), WEIGHTS, SCALES),
    "big-endian ids": (IDS.astype(">i8"), WEIGHTS, SCALES),
    "strided ids": (np.zeros(8, np.int64)[::2], WEIGHTS, SCALES),
    "ids of two dimensions": (IDS[:, None], WEIGHTS, SCALES),
    "a list": ([0, 1, 2, 3], WEIGHTS, SCALES),
    "int8 weights": (IDS, WEIGHTS.astype(np.int8), SCALES),
    "narrow weights": (IDS, WEIGHTS[:, :255].copy(), SCALES),
    "too few weights": (IDS, WEIGHTS[:3], SCALES),
    "too many scales": (IDS, WEIGHTS, arrays(5)[1]),
    "strided weights": (IDS, arrays(8)[0][::2], SCALES),
    "Fortran order": (IDS, np.asfortranarray(WEIGHTS), SCALES),
    "flat scales": (IDS, WEIGHTS, SCALES.reshape(-1)),
    "read-only weights": (IDS, read_only(arrays(4)[0]), SCALES),
    "read-only scales": (IDS, WEIGHTS, read_only(arrays(4)[1])),
    "bytes for output": (IDS, bytes(1024), SCALES),
    "nothing": (IDS, None, SCALES),
}


@pytest.mark.parametrize("call", ["lookup", "submit"])
def test_arrays_are_never_converted(store: Any, call: str) -> None:
    for name, wrong in WRONG.items():
        with pytest.raises((TypeError, ValueError), match="expected"):
            getattr(store, call)(*wrong)
        assert store.stats()["lookups"] == 0, name


def test_tickets(checkpoint: Checkpoint, store: Any) -> None:
    held = []
    for seed in range(6):
        ids = draw_ids(700, seed=seed)
        out = arrays(700)
        held.append((expected(checkpoint, ids), out, store.submit(ids, *out)))
        ids[:] = 2**62  # the ids may be reused as soon as submit() has returned
    for right, out, ticket in reversed(held):
        ticket.wait(timeout=60)
        assert ticket.done
        ticket.wait()
        assert (out[0] == right[0]).all()
        assert (out[1] == right[1]).all()


def test_a_ticket_that_nobody_waits_for_keeps_its_arrays(store: Any) -> None:
    weights, scales = arrays(5000)
    ticket = store.submit(draw_ids(5000), weights, scales)
    with pytest.raises(ValueError, match="resize"):
        weights.resize(1)
    del ticket
    assert store.stats()["wall_seconds"]["count"] == 1


def test_lookups_from_many_threads(checkpoint: Checkpoint, store: Any) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        for turn in range(10):
            ids = draw_ids(300, seed=100 * seed + turn)
            out = arrays(300)
            store.lookup(ids, *out)
            right = expected(checkpoint, ids)
            if (out[0] != right[0]).any() or (out[1] != right[1]).any():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_random_lookups(checkpoint: Checkpoint, store: Any) -> None:
    """200,000 per way here; `make test-rows-long` does ten million."""
    for turn in range(40):
        ids = draw_ids(5000, seed=turn)
        out = arrays(5000)
        store.lookup(ids, *out)
        right = expected(checkpoint, ids)
        assert (out[0] == right[0]).all()
        assert (out[1] == right[1]).all()
    assert store.stats()["lookups"] == 200_000


def test_a_closed_store_is_closed(path: Path, way: Way) -> None:
    store = way.open(path)
    ticket = store.submit(draw_ids(900), *arrays(900))
    store.close()
    store.close()
    ticket.wait()
    with pytest.raises(ROWS_ERRORS, match="closed"):
        store.lookup(draw_ids(1), *arrays(1))


def test_the_cache_answers_what_it_has_seen(checkpoint: Checkpoint, path: Path) -> None:
    store = Way(name="cache", cache_bytes=10**6).open(path)
    ids = draw_ids(400)
    for turn in range(3):
        out = arrays(400)
        store.lookup(ids, *out)
        assert (out[0] == expected(checkpoint, ids)[0]).all()
        assert (out[1] == expected(checkpoint, ids)[1]).all()
        stats = store.stats()
        assert stats["cache_hits"] == turn * stats["cache_misses"]
    mine = OWNED.locals_of(1, ids[ids >= 0])
    assert stats["device_reads"] == len(set(mine[mine >= 0]))


def test_counts_by_order(checkpoint: Checkpoint, folder: Path) -> None:
    shard = Shard(rank=1, tp=3)
    right: dict[str, Any] = {"engram": SMALL, "partition": "weighted", "shard": shard}
    stores = rows.open_shard(
        rows_dir=folder, checkpoint=checkpoint.path, cache_bytes=10**6, **right
    )
    ids = np.repeat(draw_ids(600), 2)
    for _ in range(2):
        stores[1].lookup(ids, *arrays(1200))
    mine = ids[(ids >= 0) & (OWNED.locals_of(1, ids) >= 0)]
    order = np.searchsorted(SMALL.offsets(1)[2::2], mine, side="right")
    found = stores[1].stats()["orders"]
    assert [o["owned"] for o in found] == [2 * (order == i).sum() for i in range(3)]
    assert [o["hits"] for o in found] == [(order == i).sum() for i in range(3)]
    assert [o["unique"] for o in found] == [len(set(mine[order == i])) for i in range(3)]
