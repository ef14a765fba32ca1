"""The SGLang adapter on a GPU, without SGLang: rows read ahead on a side stream, in graphs too.

The engine cannot be installed beside this torch; what runs here is the adapter's own code between
the hash and the layer, on the streams and in the graphs in which the engine would call it.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dsv41.adapters.row_files import Rows  # noqa: E402 - after the skip
from dsv41.adapters.sglang import engram_prefetch  # noqa: E402 - after the skip
from dsv41.adapters.sglang.engram_nvme import NvmeRows  # noqa: E402 - after the skip
from dsv41.adapters.staging import Lookup  # noqa: E402 - after the skip
from gpu import table as tables  # noqa: E402 - after the skip
from gpu.table import COLUMNS, Table  # noqa: E402 - after the skip

TOKENS, PIECE = 8, 5 * COLUMNS  # two pieces a lookup


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return tables.make(tmp_path_factory.mktemp("table"))


def layer(table: Table) -> NvmeRows:
    """One layer's rows, as after `finish_load`."""
    made = NvmeRows.__new__(NvmeRows)
    store = table.open(production=1)
    made.file = Rows(
        library=table.library,
        store=store,
        path=table.path,
        ranges=(),
        source=None,
        source_path=None,
    )
    made.layer_id, made.dim, made.columns = 1, 256, COLUMNS
    made.second = made.ahead = None
    made.staging, made.of_graphs = (
        Lookup(library=table.library, store=store, ids=PIECE, device="cuda") for _ in range(2)
    )
    return made


def forward(layers: list[NvmeRows], ids: Any, work: Any) -> list[Any]:
    """A pass: all lookups begin, then every layer computes and takes its rows."""
    for place, rows in enumerate(layers):
        rows.ahead = engram_prefetch._begin(rows, ids[:, place])
    found = []
    for place, rows in enumerate(layers):
        torch.mm(work, work, out=work)
        found.append(rows._owned_rows(ids[:, place]))
    return found


def wrong(table: Table, ids: Any, found: list[Any]) -> int:
    """Values that are not those of the table in device memory."""
    count = 0
    for place, rows in enumerate(found):
        wanted = table.reference[ids[:, place].clamp_min(0).long()]
        wanted.masked_fill_((ids[:, place] < 0).unsqueeze(-1), 0)
        count += int((rows.view(torch.int16) != wanted.view(torch.int16)).sum())
    return count


def draw(table: Table, seed: int) -> Any:
    ids = torch.stack([table.draw(TOKENS, seed=2 * seed + place) for place in range(2)], dim=1)
    ids[seed % TOKENS, :, seed % COLUMNS] = -1
    return ids.cuda().long()


def test_rows_that_were_read_ahead(table: Table) -> None:
    layers, work = [layer(table), layer(table)], torch.zeros(2048, 2048, device="cuda")
    for seed in range(100):
        ids = draw(table, seed)
        assert wrong(table, ids, forward(layers, ids, work)) == 0
    assert [rows.file.store.stats()["batches"] for rows in layers] == [200, 200]


def test_a_lookup_of_other_ids_waits_for_the_one_under_way(table: Table) -> None:
    rows = layer(table)
    for seed in range(50):
        ids, other = draw(table, seed), draw(table, 1000 + seed)
        rows.ahead = engram_prefetch._begin(rows, ids[:, 0])
        found = rows._owned_rows(other[:, 0])
        assert wrong(table, other[:, :1], [found]) == 0


def test_a_graph_forks_and_joins_the_side_stream(table: Table) -> None:
    layers, work = [layer(table), layer(table)], torch.zeros(2048, 2048, device="cuda")
    ids = draw(table, 0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward(layers, ids, work)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward(layers, ids, work)
    for seed in range(300):
        ids.copy_(draw(table, seed))
        graph.replay()
        assert wrong(table, ids, found) == 0
        other = draw(table, 5000 + seed)
        if seed % 3 == 0:  # an eager pass between two replays
            assert wrong(table, other, forward(layers, other, work)) == 0
        if seed % 3 == 1:  # and one that ends before its layers: nobody waits for its lookups
            for place, rows in enumerate(layers):
                engram_prefetch._begin(rows, other[:, place])
