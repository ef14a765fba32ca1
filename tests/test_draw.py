"""Pictures: the committed ones are what the code draws, and arrows touch the boxes they join."""

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

from dsv41.draw import CELL_HEIGHT, CELL_WIDTH, Arrow, Box, boxes

ROOT = Path(__file__).parent.parent
SVG = "{http://www.w3.org/2000/svg}"


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
    for svg in pictures().DRAWN.values():
        root = ET.fromstring(svg)  # noqa: S314 - our own text
        x, y, width, height = map(float, root.attrib["viewBox"].split())
        for rect in root.findall(f"{SVG}rect")[1:]:
            assert x <= float(rect.attrib["x"]) <= x + width - CELL_WIDTH
            assert y <= float(rect.attrib["y"]) <= y + height - CELL_HEIGHT
