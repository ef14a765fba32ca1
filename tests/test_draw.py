"""Pictures: the committed ones are what the code draws, and arrows touch the boxes they join."""

import importlib.util
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from dsv41.draw import (
    CELL_HEIGHT,
    CELL_WIDTH,
    Arrow,
    Bar,
    Box,
    Cable,
    Grid,
    Part,
    bars_svg,
    bars_text,
    boxes,
    cabling_svg,
    cells_svg,
    cells_text,
)

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@cache
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", list(pictures().DRAWN))
def test_the_committed_picture_is_the_drawn_one(name: str) -> None:
    """`make pictures` draws them again."""
    assert (ROOT / "docs" / "pictures" / name).read_text() == pictures().DRAWN[name]


def test_an_arrow_runs_from_edge_to_edge() -> None:
    left, right = Box(column=0, row=0, title="a & b"), Box(column=1, row=0, title="c")
    root = ET.fromstring(boxes([left, right], [Arrow(start=0, end=1, says="x")], title="t"))  # noqa: S314 - our own text
    line = root.find(f"{SVG}line")
    assert line is not None
    assert float(line.attrib["x1"]) == left.left + CELL_WIDTH
    assert float(line.attrib["x2"]) == right.left
    assert float(line.attrib["y1"]) == left.top + CELL_HEIGHT / 2
    assert [t.text for t in root.iter(f"{SVG}tspan")] == ["a & b", "c"]
    assert root.findtext(f"{SVG}title") == "t"


def test_everything_lies_inside_the_view() -> None:
    root = ET.fromstring(pictures().DRAWN["architecture.svg"])  # noqa: S314 - our own text
    x, y, width, height = map(float, root.attrib["viewBox"].split())
    for rect in root.findall(f"{SVG}rect")[1:]:
        assert x <= float(rect.attrib["x"]) <= x + width - CELL_WIDTH
        assert y <= float(rect.attrib["y"]) <= y + height - CELL_HEIGHT


@pytest.mark.parametrize("name", list(pictures().DRAWN))
def test_no_word_lies_outside_the_view(name: str) -> None:
    root = ET.fromstring(pictures().DRAWN[name])  # noqa: S314 - our own text
    x, y, width, height = map(float, root.attrib["viewBox"].split())
    for text in root.findall(f"{SVG}text"):
        assert x <= float(text.attrib["x"]) <= x + width
        assert y <= float(text.attrib["y"]) <= y + height


GIB = 1 << 30
BARS = [
    Bar(
        label="rank 0",
        parts=(
            Part(name="weights", bytes=6 * GIB),
            Part(name="nothing", bytes=0),
            Part(name="window", bytes=1),
        ),
        total=10 * GIB,
    ),
    Bar(label="rank 1", parts=(Part(name="weights", bytes=12 * GIB),), total=10 * GIB),
]


def test_bars_in_text() -> None:
    """Every part has a letter, whatever its size; so has what is free."""
    first, second, legend = bars_text(BARS, width=61).splitlines()
    assert first == "rank 0  WWWWWWWWWWWWI.......  6.0 of 10.0 GiB, 4.0 free"
    assert second.startswith("rank 1  WWWWWWWWWWWWWWWWWWWW  12.0 of")
    assert second.endswith("-2.0 free")
    assert legend == "GiB: W weights 6.0, I window 0.0"


def test_bars_as_a_picture_keep_their_proportions() -> None:
    root = ET.fromstring(bars_svg(BARS, title="t"))  # noqa: S314 - our own text
    widths = [
        float(r.attrib["width"])
        for r in root.findall(f"{SVG}rect")
        if r.find(f"{SVG}title") is not None
    ]
    assert widths[0] == pytest.approx(0.6 * 620)
    assert widths[-1] == pytest.approx(620)  # more than there is ends at the edge


GRID = Grid(
    title="t",
    rows=["32k", "1M"],
    columns=["1", "16"],
    cells=[["full", "tight"], ["tight", "refused"]],
    down="context",
    across="streams",
    shades={"full": ("█", "#111"), "tight": ("░", "#222"), "refused": ("·", "#333")},
    meanings={"full": "fits", "tight": "tight", "refused": "refused"},
)


def test_a_map_in_text_and_as_a_picture() -> None:
    assert cells_text(GRID).splitlines() == [
        "context     1  16  streams",
        "    32k   ███ ░░░",
        "     1M   ░░░ ···",
        "███ fits  ░░░ tight  ··· refused",
    ]
    root = ET.fromstring(cells_svg(GRID))  # noqa: S314 - our own text
    fills = [rect.attrib["fill"] for rect in root.findall(f"{SVG}rect")][1:5]
    assert fills == ["#111", "#222", "#222", "#333"]


def test_cables_run_from_node_to_node() -> None:
    ends = [((0, "f0", "10.0.1.1/24"), (1, "f1", "10.0.1.2/24"))]
    ends += [((1, "f0", "10.0.2.1/24"), (2, "f1", "10.0.2.2/24"))]
    direct = [Cable(subnet=f"10.0.{n}.0/24", ends=pair) for n, pair in enumerate(ends, 1)]
    root = ET.fromstring(cabling_svg(["a", "b", "c"], direct, title="t"))  # noqa: S314
    assert len(root.findall(f"{SVG}line")) == 2
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {"a", "head, rank 0", "10.0.2.0/24", "f1 .2"} <= set(texts)
    assert "switch" not in texts


def test_more_than_two_ends_are_a_switch() -> None:
    ends = tuple((rank, "f0", f"10.0.1.{rank + 1}/24") for rank in range(4))
    cable = Cable(subnet="10.0.1.0/24", ends=ends)
    root = ET.fromstring(cabling_svg(list("abcd"), [cable], title="t"))  # noqa: S314
    assert len(root.findall(f"{SVG}line")) == 4
    assert "10.0.1.0/24 on f0" in [text.text for text in root.findall(f"{SVG}text")]
