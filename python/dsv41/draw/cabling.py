"""A fleet's cables: nodes around a circle, a line a cable, a switch in their middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin

from dsv41.draw.canvas import INK, LINE, PALETTE, PAPER, TINT, opening, words

RADIUS, WIDTH, HEIGHT = 185.0, 132.0, 46.0  # pixels
MARGIN = 100.0
NEAR, MIDDLE = 0.30, 0.5  # where along a cable the names of port and subnet stand
FLAT, LIFT = 40.0, 13.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """One subnet: its ends are (place of the node, port, address)."""

    subnet: str
    ends: tuple[tuple[int, str, str], ...]


def cabling_svg(nodes: Sequence[str], cables: Sequence[Cable], *, title: str) -> str:
    """The drawing; a cable with more than two ends goes through the switch."""
    size = 2 * (RADIUS + MARGIN)
    places = [_place(index, len(nodes)) for index in range(len(nodes))]
    parts = [opening(size + 120, size - 40, title=title), words(16, 22, title)]
    switched = any(len(cable.ends) > 2 for cable in cables)
    for number, cable in enumerate(cables):
        color = PALETTE[number % len(PALETTE)]
        parts += _through_switch(cable, places, number, color) if switched else []
        parts += [] if switched else _direct(cable, places, color)
    if switched:
        parts += _node(_middle(), "switch", "MTU 9000", fill=PAPER)
        for number, cable in enumerate(cables):
            x, y = 16.0, size - 60 - 18 * (len(cables) - 1 - number)
            parts.append(
                words(x, y, f"{cable.subnet} on {cable.ends[0][1]}", color=PALETTE[number])
            )
    for rank, (name, place) in enumerate(zip(nodes, places, strict=True)):
        role = "head, rank 0" if rank == 0 else f"rank {rank}"
        parts += _node(place, name, role, fill=PAPER if rank else TINT)
    return "\n".join([*parts, "</svg>\n"])


def _middle() -> tuple[float, float]:
    return RADIUS + MARGIN + 60, RADIUS + MARGIN - 10


def _place(index: int, count: int) -> tuple[float, float]:
    """Around the circle, the head on top."""
    x, y = _middle()
    turn = 2 * pi * index / count - pi / 2
    return x + 1.25 * RADIUS * cos(turn), y + RADIUS * sin(turn)


def _node(place: tuple[float, float], name: str, role: str, *, fill: str) -> list[str]:
    x, y = place
    frame = (
        f'<rect x="{x - WIDTH / 2:.1f}" y="{y - HEIGHT / 2:.1f}" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}" rx="7" fill="{fill}" stroke="{INK}"/>'
    )
    return [
        frame,
        words(x, y - 3, name, anchor="middle"),
        words(x, y + 14, role, anchor="middle", color=LINE),
    ]


def _line(start: tuple[float, float], end: tuple[float, float], color: str) -> str:
    (x1, y1), (x2, y2) = start, end
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        'stroke-width="3"/>'
    )


def _beside(start: tuple[float, float], end: tuple[float, float], at: float, text: str) -> str:
    """Words on a line, on a white ground so that they can be read; on a flat one off it."""
    x = start[0] + (end[0] - start[0]) * at
    y = start[1] + (end[1] - start[1]) * at
    if abs(end[1] - start[1]) < FLAT:
        y += -LIFT if at == MIDDLE else LIFT
    half = 3.1 * len(text)
    ground = (
        f'<rect x="{x - half:.1f}" y="{y - 9:.1f}" width="{2 * half:.1f}" height="15" '
        f'fill="{PAPER}"/>'
    )
    return ground + words(x, y + 3, text, anchor="middle", color=LINE)


def _direct(cable: Cable, places: Sequence[tuple[float, float]], color: str) -> list[str]:
    (one, port, address), (other, far_port, far_address) = cable.ends
    start, end = places[one], places[other]
    return [
        _line(start, end, color),
        _beside(start, end, MIDDLE, cable.subnet),
        _beside(start, end, NEAR, f"{port} {_host(address)}"),
        _beside(end, start, NEAR, f"{far_port} {_host(far_address)}"),
    ]


def _host(address: str) -> str:
    return "." + address.split("/", maxsplit=1)[0].rsplit(".", 1)[-1]


def _through_switch(
    cable: Cable, places: Sequence[tuple[float, float]], number: int, color: str
) -> list[str]:
    """One line a node, beside those of the other subnets."""
    x, y = _middle()
    aside = 8 * number
    return [
        _line((places[node][0] + aside, places[node][1] + aside), (x + aside, y + aside), color)
        for node, _, _ in cable.ends
    ]
