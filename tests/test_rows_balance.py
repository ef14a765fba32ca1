"""How evenly the ranks read: distinct rows per rank on real text, real tokenizer, real hashing."""

from __future__ import annotations

import argparse
import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import starlette
from tokenizers import Tokenizer

from dsv41.geometry import DEFAULT_PARTITION, REAL_ENGRAM, hash_columns, partition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

# Files that are wherever these tests run: descriptions and licenses of packages that the project
# asks for, sources of one of them, and modules of the standard library.
DESCRIBED = (
    "hypothesis",
    "numpy",
    "openai",
    "prometheus-client",
    "pytest",
    "rich",
    "ruff",
    "starlette",
    "tokenizers",
    "uvicorn",
)
STANDARD = ("argparse.py", "ast.py", "datetime.py", "inspect.py", "tarfile.py", "typing.py")
CHUNKS = (768, 4096, 15_693)  # prefill chunks of the TP3 and TP4 recipes, and a whole prompt


def prose() -> list[Path]:
    found = []
    for name in DESCRIBED:
        files = importlib.metadata.distribution(name).files or []
        kept = [f for f in files if f.name == "METADATA" or "LICENSE" in f.name.upper()]
        found += [Path(str(f.locate())) for f in kept if not f.name.endswith(".py")]
    return found


def code() -> list[Path]:
    library = Path(argparse.__file__).parent
    package = Path(starlette.__file__).parent
    return [*(library / name for name in STANDARD), *sorted(package.rglob("*.py"))]


@pytest.fixture(scope="module")
def compressed(checkpoint: Path) -> dict[str, Ids]:
    """Compressed token ids of the two bodies of text, each as one stream."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    numbers = np.fromfile(checkpoint / "token_map.i32", "<i4").astype(np.int64)
    streams = {}
    for name, paths in (("prose", prose()), ("code", code())):
        texts = [path.read_text(encoding="utf-8") for path in paths]
        tokens = [i for e in tokenizer.encode_batch_fast(texts) for i in e.ids]
        streams[name] = numbers[tokens]
    return streams


def distinct_rows(ids: Ids, *, layer: int) -> Ids:
    shifted = [ids, *(np.concatenate([np.full(k, 2), ids[:-k]]) for k in (1, 2, 3))]
    multipliers = REAL_ENGRAM.multipliers[REAL_ENGRAM.layer_ids.index(layer)]
    primes, offsets = REAL_ENGRAM.primes(layer), REAL_ENGRAM.offsets(layer)
    columns = hash_columns(shifted, multipliers=multipliers, primes=primes, offsets=offsets)
    return np.unique(np.concatenate(columns))


def skews(stream: Ids, *, name: str, chunk: int) -> dict[int, float]:
    """Most reads of a rank over least, per number of ranks; the worse layer of both."""
    ratios: dict[int, list[float]] = {3: [], 4: []}
    for layer in REAL_ENGRAM.layer_ids:
        starts = range(0, min(len(stream), 48_000) - chunk + 1, chunk)
        chunks = [distinct_rows(stream[at : at + chunk], layer=layer) for at in starts]
        for tp, found in ratios.items():
            cut = partition(name, engram=REAL_ENGRAM, layer_id=layer, tp=tp)
            owned = [[(cut.locals_of(r, rows) >= 0).sum() for r in range(tp)] for rows in chunks]
            reads = np.sum(owned, axis=0)
            found.append(float(reads.max() / reads.min()))
    return {tp: max(found) for tp, found in ratios.items()}


@pytest.mark.parametrize("body", ["prose", "code"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_default_partition_reads_evenly(
    compressed: dict[str, Ids], body: str, chunk: int
) -> None:
    stream = compressed[body]
    assert len(stream) > 30_000
    found = skews(stream, name=DEFAULT_PARTITION, chunk=chunk)
    assert found[3] <= 1.10
    assert found[4] <= 1.05


def test_equal_pieces_of_the_table_do_not(compressed: dict[str, Ids]) -> None:
    for name in ("contiguous-rows", "contiguous-columns"):
        assert min(skews(compressed["code"], name=name, chunk=4096).values()) > 1.3
