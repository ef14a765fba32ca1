"""Pictures from data: pure functions to SVG and text. Looks nothing up."""

from __future__ import annotations

from dsv41.draw.bars import Bar, Part, bars_svg, bars_text
from dsv41.draw.boxes import CELL_HEIGHT, CELL_WIDTH, Arrow, Box, boxes
from dsv41.draw.cabling import Cable, cabling_svg
from dsv41.draw.cells import Grid, cells_svg, cells_text

__all__ = [
    "CELL_HEIGHT",
    "CELL_WIDTH",
    "Arrow",
    "Bar",
    "Box",
    "Cable",
    "Grid",
    "Part",
    "bars_svg",
    "bars_text",
    "boxes",
    "cabling_svg",
    "cells_svg",
    "cells_text",
]
