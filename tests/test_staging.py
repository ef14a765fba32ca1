"""Rows into tensors: bit-equal to the formats' definition, foreign and impossible ids, errors."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsv41 import rows
from dsv41.adapters.staging import Lookup, dequantize, runtime
from dsv41.adapters.works import Works
from dsv41.rows.abi import Library, RowsError, RowStore
from dsv41.rows.structs import Work
from rowsfix import LIBRARY, OWNED, RIGHT, Checkpoint, pack_all, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted"])
    return folder / rows.file_name(**RIGHT)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(LIBRARY)


def opened(library: Library, path: Path, **more: Any) -> RowStore:
    return library.RowStore.open(str(path), **RIGHT, **more)


def decoded(weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """By the definition, in float32: uint8 [n, 256] and [n, 8] -> bfloat16 [n, 256]."""
    factors = (scales.to(torch.int32) << 23).view(torch.float32)
    values = weights.view(torch.float8_e4m3fn).to(torch.float32).view(*scales.shape, 32)
    return (values * factors.unsqueeze(-1)).to(torch.bfloat16).view(weights.shape)


def bits(values: torch.Tensor) -> torch.Tensor:
    """Bit patterns; which NaN it is does not matter."""
    return values.nan_to_num(nan=0.123).view(torch.int16)


def wanted(checkpoint: Checkpoint, ids: torch.Tensor) -> torch.Tensor:
    """What rank 1 of 3 gives for ids of layer 1."""
    own = torch.tensor([_is_ours(int(i)) for i in ids.flatten()])
    known = torch.where(own, ids.flatten().long(), 0)
    weights, scales = (
        torch.from_numpy(np.ascontiguousarray(part[1][known])) * own[:, None].to(torch.uint8)
        for part in (checkpoint.weights, checkpoint.scales)
    )
    return decoded(weights, scales).view(*ids.shape, 256)


def _is_ours(row: int) -> bool:
    return 0 <= row < OWNED.total_rows and OWNED.owner(row) == 1


def test_every_pair_of_codes_is_decoded_as_in_float32() -> None:
    weights = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 8)
    out = torch.empty(256, 256, dtype=torch.bfloat16)
    dequantize(weights.view(torch.float8_e4m3fn), scales, out=out)
    expected = decoded(weights, scales)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(bits(out)[~out.isnan()], bits(expected)[~out.isnan()])
    assert (out[0] == 0)[~out[0].isnan()].all()
    assert out[127, 0x38] == 1.0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("engine", ["pread", "auto"])
def test_rows_of_any_shape(
    library: Library, path: Path, checkpoint: Checkpoint, dtype: torch.dtype, engine: str
) -> None:
    store = opened(library, path, engine=engine)
    lookup = Lookup(library=library, store=store, ids=96, device="cpu")
    draw = torch.Generator().manual_seed(5)
    for shape in ((4, 24), (24,), (1, 1), (2, 3, 5), (4, 24)):
        ids = torch.randint(0, store.total_rows, shape, generator=draw, dtype=dtype)
        out = torch.full((*shape, 256), float("nan"), dtype=torch.bfloat16)
        lookup.enqueue(ids, out)
        assert torch.equal(bits(out), bits(wanted(checkpoint, ids)))
    assert out.any()


def test_ids_that_no_table_has_give_zero_rows(
    library: Library, path: Path, checkpoint: Checkpoint
) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=8, device="cpu")
    own = OWNED.to_global(1, 7)
    ids = torch.tensor([own, -1, -(2**40), OWNED.total_rows, 2**32 + own, 2**62, own])
    out = torch.full((7, 256), 3.0, dtype=torch.bfloat16)
    lookup.enqueue(ids, out)
    assert torch.equal(bits(out), bits(wanted(checkpoint, ids)))
    assert not out[1:6].any()
    assert torch.equal(bits(out[0]), bits(out[6]))
    assert out[0].any()


def test_a_column_slice_of_ids(library: Library, path: Path, checkpoint: Checkpoint) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=8, device="cpu")
    ids = torch.arange(24, dtype=torch.int32).view(4, 6)[:, 1::3]
    out = torch.empty(4, 2, 256, dtype=torch.bfloat16)
    lookup.enqueue(ids, out)
    assert torch.equal(bits(out), bits(wanted(checkpoint, ids)))


def test_no_ids(library: Library, path: Path) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=8, device="cpu")
    lookup.enqueue(torch.empty(0, 24, dtype=torch.int32), torch.empty(0, 24, 256).bfloat16())
    assert not lookup.works


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((9,), torch.empty(9, 256, dtype=torch.bfloat16)),
        ((4,), torch.empty(4, 256)),
        ((4,), torch.empty(5, 256, dtype=torch.bfloat16)),
        ((4,), torch.empty(4, 512, dtype=torch.bfloat16)[:, ::2]),
    ],
)
def test_what_does_not_fit(
    library: Library, path: Path, shape: tuple[int, ...], out: torch.Tensor
) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=8, device="cpu")
    with pytest.raises(ValueError, match="expected"):
        lookup.enqueue(torch.zeros(shape, dtype=torch.int32), out)


def test_a_flipped_bit_is_an_error_and_said_once(
    library: Library, path: Path, tmp_path: Path
) -> None:
    content = bytearray(path.read_bytes())
    content[4096 + 256 * 3 + 11] ^= 4  # local row 3
    damaged = tmp_path / path.name
    damaged.write_bytes(content)
    lookup = Lookup(library=library, store=opened(library, damaged), ids=8, device="cpu")
    out = torch.empty(1, 256, dtype=torch.bfloat16)
    with pytest.raises(RowsError, match="layer 1 failed: corrupt"):
        lookup.enqueue(torch.tensor([OWNED.to_global(1, 3)]), out)
    lookup.check()
    lookup.enqueue(torch.tensor([OWNED.to_global(1, 40)]), out)


def test_addresses_stay(library: Library, path: Path) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=8, device="cpu")
    works = []
    for count in (3, 8, 3):
        lookup.enqueue(torch.zeros(count, dtype=torch.int32), torch.empty(count, 256).bfloat16())
        works.append(lookup.works[count])
    assert works[0] is works[2]
    assert works[0].ids == works[1].ids == lookup.ids.data_ptr()


def test_only_what_may_have_failed_is_looked_at(library: Library, path: Path) -> None:
    lookup = Lookup(library=library, store=opened(library, path), ids=200, device="cpu")
    for count in range(1, 201):
        lookup.enqueue(torch.full((count,), -1), torch.empty(count, 256).bfloat16())
        assert lookup.works.watched() == 0  # a CPU waits for each
    assert len(lookup.works) == 200


def make(count: int) -> Work:
    return Work(count=count)


def failed(works: Works) -> list[int]:
    return list(works.failures())


def test_ten_thousand_lengths_cost_no_more_than_one() -> None:
    """As on a GPU: the library ends a lookup some time after it was begun."""
    works, under_way = Works(), []
    for count in range(1, 10_001):
        under_way.append(works.begin(count, make=make, captured=False))
        if len(under_way) > 3:
            under_way.pop(0).generation += 1
        assert failed(works) == []
        assert works.watched() <= 3
    assert len(works) == 10_000
    late = under_way[0]
    late.status = 6
    assert failed(works) == [6]
    assert failed(works) == []


def test_a_failure_is_seen_however_late() -> None:
    works = Works()
    work = works.begin(3, make=make, captured=False)
    assert failed(works) == failed(works) == []
    assert works.begin(3, make=make, captured=False) is work  # the same again while it is under way
    work.status = 6
    assert failed(works) == [6]
    assert failed(works) == []
    work.status = 7  # and the second
    assert failed(works) == [7]
    assert failed(works) == []
    assert works.watched() == 0


def test_a_captured_lookup_may_fail_at_any_replay() -> None:
    works = Works()
    work = works.begin(24, make=make, captured=True)
    for _ in range(3):
        work.generation += 1
        assert failed(works) == []
    work.status = 6
    assert failed(works) == [6]
    assert works.watched() == 1


def test_a_lookup_is_freed_with_its_last_holder(library: Library, path: Path) -> None:
    """Freed by the collector in the middle of a capture, pinned memory breaks torch's allocator."""
    store, ids = opened(library, path), torch.arange(8)
    lookup = Lookup(library=library, store=store, ids=8, device="cpu")
    lookup.enqueue(ids, torch.empty(8, 256, dtype=torch.bfloat16))
    lookup.drop(lookup.submit(ids))
    gone = weakref.ref(lookup)
    gc.disable()
    try:
        del lookup
        assert gone() is None
    finally:
        gc.enable()


def test_no_runtime_without_cuda() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match="no libcudart"):
        runtime()
