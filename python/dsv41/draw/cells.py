"""A map of cells: one word a cell, drawn as a shade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsv41.draw.canvas import box, opening, words

CELL, LEFT, TOP = 62.0, 110.0, 66.0  # pixels
LINE_HEIGHT = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Rows of cells with names for both axes; `shades` and `meanings` are by the word of a cell."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[str]]
    down: str
    across: str
    shades: Mapping[str, tuple[str, str]]  # word -> (character, color)
    meanings: Mapping[str, str]


def cells_text(grid: Grid) -> str:
    """The map in characters, three a cell, with its legend."""
    label = max(len(grid.down), *(len(row) for row in grid.rows))
    head = f"{grid.down:>{label}}  " + "".join(f"{name:>4}" for name in grid.columns)
    lines = [f"{head}  {grid.across}"]
    for name, row in zip(grid.rows, grid.cells, strict=True):
        shown = "".join(f" {grid.shades[cell][0] * 3}" for cell in row)
        lines.append(f"{name:>{label}}  {shown}")
    legend = "  ".join(f"{grid.shades[cell][0] * 3} {says}" for cell, says in grid.meanings.items())
    return "\n".join([*lines, legend])


def cells_svg(grid: Grid) -> str:
    """The map as rectangles, with its legend below."""
    width = LEFT + CELL * len(grid.columns) + 30
    bottom = TOP + LINE_HEIGHT * len(grid.rows)
    height = bottom + 20 + 22 * len(grid.meanings)
    parts = [opening(width, height, title=grid.title), words(16, 22, grid.title)]
    parts.append(words(LEFT, 40, grid.across))
    for place, name in enumerate(grid.columns):
        parts.append(words(LEFT + CELL * (place + 0.5), TOP - 8, name, anchor="middle"))
    for place, (name, row) in enumerate(zip(grid.rows, grid.cells, strict=True)):
        y = TOP + LINE_HEIGHT * place
        parts.append(words(LEFT - 10, y + 19, name, anchor="end"))
        parts += [
            box(
                LEFT + CELL * at + 1,
                y + 1,
                CELL - 2,
                LINE_HEIGHT - 2,
                grid.shades[cell][1],
                says=f"{name} x {grid.columns[at]}: {grid.meanings[cell]}",
            )
            for at, cell in enumerate(row)
        ]
    for place, (cell, says) in enumerate(grid.meanings.items()):
        y = bottom + 14 + 22 * place
        parts += [box(LEFT, y, 14, 14, grid.shades[cell][1]), words(LEFT + 22, y + 12, says)]
    return "\n".join([*parts, "</svg>\n"])
