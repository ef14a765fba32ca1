"""Measure the row cache on real text: `python scripts/bench_row_cache.py CHECKPOINT_FOLDER`.

The text is that of tests/test_rows_balance.py: files of installed packages, tokenized and hashed as
the model does. Its chunks are looked up one after another, as a prefill or a decode step asks for
them, through a cache with the sets, ways and victims of csrc/src/cache.cpp, without a disk: which
rows a cache holds does not depend on how they are read. Prints JSON: hit rates by n-gram order, and
reads saved beside what dedupe inside a call saves already.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from tokenizers import Tokenizer

from dsv41.geometry import DEFAULT_PARTITION, REAL_ENGRAM, partition
from test_rows_balance import code, distinct_rows, prose

WAYS, SLOT = 4, 280  # of RowCache: ways, bytes of a slot
SIZES = (16, 64, 256)  # MiB
CALLS = (6, 4096)  # tokens of a call: decode with drafts, prefill chunk
LAYER, TP, RANK = 1, 3, 0
TOKENS = 24_000


def main() -> int:
    """Measure and print."""
    checkpoint = Path(sys.argv[1])
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    numbers = np.fromfile(checkpoint / "token_map.i32", "<i4").astype(np.int64)
    cut = partition(DEFAULT_PARTITION, engram=REAL_ENGRAM, layer_id=LAYER, tp=TP)
    found = {}
    for name, paths in (("prose", prose()), ("code", code())):
        texts = [path.read_text(encoding="utf-8") for path in paths]
        tokens = [i for e in tokenizer.encode_batch_fast(texts) for i in e.ids]
        stream = numbers[tokens][:TOKENS]
        for call in CALLS:
            rows = [
                cut.locals_of(RANK, distinct_rows(stream[at : at + call], layer=LAYER))
                for at in range(0, len(stream) - call + 1, call)
            ]
            globals_ = [
                distinct_rows(stream[at : at + call], layer=LAYER)
                for at in range(0, len(stream) - call + 1, call)
            ]
            mine = [(g[r >= 0], r[r >= 0]) for g, r in zip(globals_, rows, strict=True)]
            for size in SIZES:
                found[f"{name}, calls of {call}, {size} MiB"] = through(mine, size << 20)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def through(calls: list[tuple[np.ndarray, np.ndarray]], size: int) -> dict[str, float]:
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
