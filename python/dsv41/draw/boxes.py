"""Boxes on a grid and arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dsv41.draw.canvas import INK, LINE, PAPER, TINT, opening

CELL_WIDTH, CELL_HEIGHT, GAP = 204, 74, 34  # pixels


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A box at a grid cell: a title and lines below it."""

    column: float
    row: float
    title: str
    lines: tuple[str, ...] = ()
    strong: bool = False

    @property
    def left(self) -> float:
        """The x of its left edge, in pixels."""
        return GAP + self.column * (CELL_WIDTH + GAP)

    @property
    def top(self) -> float:
        """The y of its upper edge, in pixels."""
        return GAP + self.row * (CELL_HEIGHT + GAP)

    @property
    def center(self) -> tuple[float, float]:
        """Its middle, in pixels."""
        return self.left + CELL_WIDTH / 2, self.top + CELL_HEIGHT / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrow:
    """An arrow between two boxes, by their place in the list, with a word beside it."""

    start: int
    end: int
    says: str = ""


def boxes(items: Sequence[Box], arrows: Sequence[Arrow], *, title: str) -> str:
    """An SVG of boxes and arrows; the same input gives the same bytes."""
    width = max(box.left for box in items) + CELL_WIDTH + GAP
    top = min(box.top for box in items) - GAP
    height = max(box.top for box in items) + CELL_HEIGHT + GAP - top
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>'
    )
    parts = [
        opening(width, height, title=title, top=top),
        tip,
        *(_arrow(items[a.start], items[a.end], a.says) for a in arrows),
        *(_box(box) for box in items),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _box(box: Box) -> str:
    x, y = box.left, box.top
    text_y = y + 21
    fill = TINT if box.strong else PAPER
    lines = "".join(
        f'<tspan x="{x + 12:g}" dy="16" fill="{LINE}">{escape(line)}</tspan>' for line in box.lines
    )
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" rx="7" '
        f'fill="{fill}" stroke="{INK}"/>'
        f'<text x="{x + 12:g}" y="{text_y:g}" fill="{INK}"><tspan font-weight="bold">'
        f"{escape(box.title)}</tspan>{lines}</text>"
    )


def _edge(box: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of `box` to a point leaves the box."""
    x, y = box.center
    dx, dy = towards[0] - x, towards[1] - y
    reach = max(abs(dx) / (CELL_WIDTH / 2), abs(dy) / (CELL_HEIGHT / 2)) or 1.0
    return x + dx / reach, y + dy / reach


def _arrow(start: Box, end: Box, says: str) -> str:
    x1, y1 = _edge(start, end.center)
    x2, y2 = _edge(end, start.center)
    line = (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{LINE}" '
        f'stroke-width="1.4" marker-end="url(#tip)"/>'
    )
    if not says:
        return line
    return line + (
        f'<text x="{(x1 + x2) / 2 + 5:.1f}" y="{(y1 + y2) / 2 - 4:.1f}" fill="{LINE}" '
        f'font-size="10.5">{escape(says)}</text>'
    )
