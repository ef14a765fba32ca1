"""Draw the pictures of the docs below docs/pictures; tests/test_draw.py holds them to this."""

from pathlib import Path

from dsv41 import example, fleet, plan, profile
from dsv41.cli import pictures
from dsv41.draw import Arrow, Box, bars_svg, boxes, cabling_svg, cells_svg

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"

ARCHITECTURE = boxes(
    [
        Box(
            column=0,
            row=0,
            title="profile.toml",
            lines=("what is served:", "knobs, each with its reason"),
        ),
        Box(column=0, row=1, title="fleet", lines=("where: nodes, addresses,", "folders, ports")),
        Box(
            column=1,
            row=0.5,
            title="plan",
            lines=("pure: same input, same bytes:", "argv, env, steps, digest"),
            strong=True,
        ),
        Box(
            column=2,
            row=0.5,
            title="rank exec",
            lines=("carries out one rank, alike", "from ssh, systemd and serve"),
        ),
        Box(
            column=3,
            row=0,
            title="rank 0",
            lines=("OpenAI endpoint, scheduler,", "guards, its model shard"),
            strong=True,
        ),
        Box(
            column=3,
            row=1,
            title="ranks 1 and 2",
            lines=("their model shards,", "the same steps"),
            strong=True,
        ),
        Box(
            column=4,
            row=0.5,
            title="row store (C++)",
            lines=("264 bytes a row, O_DIRECT,", "a CRC each, one read each"),
        ),
        Box(
            column=4,
            row=1.5,
            title="row files",
            lines=("one a layer and rank,", "on the node's own disk"),
        ),
        Box(
            column=2,
            row=1.5,
            title="pack",
            lines=("checkpoint -> row files,", "atomic, verifiable"),
        ),
        Box(column=4, row=-0.6, title="client", lines=("any OpenAI client,", "dsv41 smoke")),
    ],
    [
        Arrow(start=0, end=2),
        Arrow(start=1, end=2),
        Arrow(start=2, end=3),
        Arrow(start=3, end=4),
        Arrow(start=3, end=5),
        Arrow(start=4, end=5, says="collectives"),
        Arrow(start=4, end=6),
        Arrow(start=5, end=6),
        Arrow(start=6, end=7),
        Arrow(start=8, end=7),
        Arrow(start=2, end=8),
        Arrow(start=9, end=4),
    ],
    title="From profile and fleet to an endpoint",
)

ROWS_OF_A_TOKEN = boxes(
    [
        Box(column=0, row=0, title="token ids", lines=("of a batch, on every rank",)),
        Box(
            column=1,
            row=0,
            title="hash",
            lines=("the engine's own: 24 row ids", "a token and Engram layer"),
        ),
        Box(
            column=2,
            row=0,
            title="ids to pinned memory",
            lines=("a copy on the stream,", "in the graph too"),
            strong=True,
        ),
        Box(
            column=2,
            row=1,
            title="host function",
            lines=("C, no CUDA, no Python: waits", "until the rows are there"),
            strong=True,
        ),
        Box(
            column=3,
            row=1,
            title="row store (C++)",
            lines=("own ids only, each once;", "O_DIRECT, a CRC a row"),
            strong=True,
        ),
        Box(
            column=3,
            row=2,
            title="row file on NVMe",
            lines=("264 bytes a row, one file", "a layer and rank"),
        ),
        Box(
            column=2,
            row=2,
            title="rows to the device",
            lines=("256 bytes e4m3, 8 scales;", "other ranks' ids: zeros"),
            strong=True,
        ),
        Box(
            column=1,
            row=2,
            title="dequantize",
            lines=("to bf16, the bits of the", "engine's own kernel"),
            strong=True,
        ),
        Box(
            column=0,
            row=2,
            title="all ranks joined",
            lines=("SGLang: all-reduce;", "vLLM: all-gather of columns"),
        ),
        Box(column=0, row=1, title="Engram layer", lines=("gates them into", "the hidden state")),
    ],
    [
        Arrow(start=0, end=1),
        Arrow(start=1, end=2),
        Arrow(start=2, end=3),
        Arrow(start=3, end=4),
        Arrow(start=4, end=5),
        Arrow(start=3, end=6),
        Arrow(start=6, end=7),
        Arrow(start=7, end=8),
        Arrow(start=8, end=9),
    ],
    title="How the Engram rows of a token travel",
)

CABLING = {"triangle": "tp3", "switch": "tp4", "ring": "tp4-ring"}
MEMORY = ("tp3", "tp4", "tp4-cycle")


def cabling(topology: str) -> str:
    """The cables of the example fleet of a profile for that topology."""
    names, cables = pictures.cabling(_fleet(profile.load(CABLING[topology])))
    return cabling_svg(names, cables, title=f"{topology} of {len(names)} nodes")


def memory(name: str) -> str:
    """The ledger of a profile on its example fleet."""
    chosen = profile.load(name)
    where = _fleet(chosen)
    bars = pictures.bars(plan.plan(chosen, where, {}), where)
    return bars_svg(bars, title=f"{name}: memory of each rank, planned")


def context_map(name: str) -> str:
    """Context by streams of a profile."""
    chosen = profile.load(name)
    return cells_svg(pictures.grid(chosen, _fleet(chosen)))


def _fleet(chosen: profile.Profile) -> fleet.Fleet:
    return fleet.parse(example.fleet_text(chosen), where="example")


DRAWN = {
    "architecture.svg": ARCHITECTURE,
    "rows.svg": ROWS_OF_A_TOKEN,
    **{f"{topology}.svg": cabling(topology) for topology in CABLING},
    **{f"memory-{name}.svg": memory(name) for name in MEMORY},
    **{f"map-{name}.svg": context_map(name) for name in MEMORY},
}


def main() -> None:
    """Write every picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, svg in DRAWN.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
