"""Measure the row cache on real text: `python scripts/bench_row_cache.py CHECKPOINT_FOLDER FOLDER`.

The text is that of tests/test_rows_balance.py: files of installed packages, tokenized and hashed as
the model does. Its chunks are looked up one after another, as a prefill or a decode step asks for
them, through a cache with the sets, ways and victims of csrc/src/cache.cpp, without a disk: which
rows a cache holds does not depend on how they are read. Then the row store itself looks them up in
a file made below FOLDER, with and without a cache. Prints JSON: hit rates by n-gram order, reads
saved beside what dedupe inside a call saves already, and processor time a row.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tokenizers import Tokenizer

from dsv41.geometry import DEFAULT_PARTITION, REAL_ENGRAM, partition
from dsv41.rows.bench.place import GIB, IDENTITY, PAGE, ROWS_PER_PAGE, made_file
from dsv41.rows.core import extension
from test_rows_balance import code, distinct_rows, prose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Call = tuple[Ids, Ids]

WAYS, SLOT = 4, 280  # of RowCache: ways, bytes of a slot
SIZES = (16, 64, 256)  # MiB
CALLS = (6, 4096)  # tokens of a call: decode with drafts, prefill chunk
LAYER, TP, RANK = 1, 3, 0
TOKENS = 24_000
SPAN, ROUNDS = 2 * GIB, 7
ROWS = (SPAN // PAGE - 1) * ROWS_PER_PAGE


def main() -> int:
    """Measure and print."""
    checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}
    with made_file(folder, span=SPAN, say=lambda text: sys.stderr.write(f"{text}\n")) as path:
        for name, mine in streams(checkpoint):
            times = processor_time([local for _, local in mine], path)
            for size in SIZES:
                kept = through(mine, size << 20)
                found[f"{name}, {size} MiB"] = kept | times[size]
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def streams(checkpoint: Path) -> Iterator[tuple[str, list[Call]]]:
    """Every text in calls of every length: its name, and global and local ids of each call."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    numbers = np.fromfile(checkpoint / "token_map.i32", "<i4").astype(np.int64)
    cut = partition(DEFAULT_PARTITION, engram=REAL_ENGRAM, layer_id=LAYER, tp=TP)
    for name, paths in (("prose", prose()), ("code", code())):
        texts = [path.read_text(encoding="utf-8") for path in paths]
        tokens = [i for e in tokenizer.encode_batch_fast(texts) for i in e.ids]
        stream = numbers[tokens][:TOKENS]
        for call in CALLS:
            starts = range(0, len(stream) - call + 1, call)
            ids = [distinct_rows(stream[at : at + call], layer=LAYER) for at in starts]
            rows = [cut.locals_of(RANK, each) for each in ids]
            mine = [(g[r >= 0], r[r >= 0]) for g, r in zip(ids, rows, strict=True)]
            yield f"{name}, calls of {call}", mine


def processor_time(calls: list[Ids], path: Path) -> dict[int, dict[str, float]]:
    """The same calls by the store itself: time a row with each cache to that without one.

    A made file has fewer rows than the table: distinct rows stay distinct and lie all over it.
    Every round opens the stores anew, since a cache that saw the stream would know all of it.
    """
    known, index = np.unique(np.concatenate(calls), return_inverse=True)
    places = np.random.default_rng(0).permutation(ROWS)[: len(known)]
    ends = np.cumsum([len(call) for call in calls])[:-1]
    asked = np.split(places[index].astype(np.int64), ends)
    runs: dict[int, list[tuple[float, float, int]]] = {size: [] for size in (0, *SIZES)}
    for number in range(ROUNDS):
        for size in (0, *SIZES) if number % 2 else (*SIZES[::-1], 0):
            runs[size].append(one_run(asked, path, size << 20))
    none = runs[0]
    return {
        size: {
            "store_reads_saved": round(1 - runs[size][0][2] / none[0][2], 3),
            "cpu_us_a_row": round(median(run[0] for run in runs[size]), 2),
            "cpu_ratio": round(
                median(a[0] / b[0] for a, b in zip(runs[size], none, strict=True)), 3
            ),
            "time_ratio": round(
                median(a[1] / b[1] for a, b in zip(runs[size], none, strict=True)), 3
            ),
        }
        for size in SIZES
    }


def one_run(asked: list[Ids], path: Path, cache_bytes: int) -> tuple[float, float, int]:
    """Processor microseconds a row, seconds in all, and device reads."""
    opener = extension().RowStore.open
    store = opener(str(path), engine="uring", cache_bytes=cache_bytes, **IDENTITY)
    most = max(map(len, asked))
    weights, scales = np.zeros((most, 256), np.uint8), np.zeros((most, 8), np.uint8)
    cpu, began = time.process_time(), time.perf_counter()
    for ids in asked:
        store.lookup(ids, weights[: len(ids)], scales[: len(ids)])
    used, took = time.process_time() - cpu, time.perf_counter() - began
    reads = store.stats()["device_reads"]
    store.close()
    return used / sum(map(len, asked)) * 1e6, took, reads


def through(calls: list[Call], size: int) -> dict[str, float]:
    """Hit rates by order, and in all, of one cache; every call has distinct rows."""
    sets = max(1, size // (WAYS * SLOT))
    keys = np.zeros((sets, WAYS), np.int64)
    victims = np.zeros(sets, np.int64)
    bounds = np.array(REAL_ENGRAM.offsets(LAYER))[REAL_ENGRAM.heads :: REAL_ENGRAM.heads]
    hits, seen = np.zeros(3), np.zeros(3)
    for ids, local in calls:
        mixed = (local.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        where = ((mixed * np.uint64(sets)) >> np.uint64(32)).astype(np.int64)
        hit = (keys[where] == (local + 1)[:, None]).any(axis=1)
        order = np.searchsorted(bounds, ids, side="right")
        np.add.at(hits, order[hit], 1)
        np.add.at(seen, order, 1)
        for one, key in zip(where[~hit].tolist(), (local[~hit] + 1).tolist(), strict=True):
            free = np.flatnonzero(keys[one] == 0)
            way = free[0] if len(free) else victims[one] % WAYS
            victims[one] += len(free) == 0
            keys[one, way] = key
    rates = hits / seen
    names = ("bigrams", "trigrams", "four_grams")
    return {n: round(float(r), 3) for n, r in zip(names, rates, strict=True)} | {
        "reads_saved": round(float(hits.sum() / seen.sum()), 3),
        "rows": int(seen.sum()),
    }


if __name__ == "__main__":
    sys.exit(main())
