"""One bar a rank: what fills its memory, in text and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsv41.draw.canvas import LINE, PALETTE, TINT, box, opening, words

GIB = 1 << 30
LEFT, RIGHT, HEIGHT, ROW, LEGEND = 150.0, 170.0, 22.0, 34.0, 190.0  # pixels
BAR = 620.0
FREE = "."


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A stretch of a bar, in bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A rank's memory: its parts in order, of a total."""

    label: str
    parts: tuple[Part, ...]
    total: int

    @property
    def free(self) -> int:
        """What the parts leave."""
        return self.total - sum(part.bytes for part in self.parts)


def bars_text(bars: Sequence[Bar], *, width: int = 100) -> str:
    """Bars of letters, the legend below; a part that has any bytes has at least one letter."""
    letters = _letters(bars)
    label = max(len(bar.label) for bar in bars)
    room = max(width - label - len("  100.0 of 121.7 GiB, -100.0 free") - 2, 20)
    lines = [f"{bar.label:{label}}  {_line(bar, letters, room)}  {_sum(bar)}" for bar in bars]
    return "\n".join([*lines, _legend(bars, letters)])


def _letters(bars: Sequence[Bar]) -> dict[str, str]:
    """A letter for each part: its first that is not taken."""
    found: dict[str, str] = {}
    for bar in bars:
        for part in (part for part in bar.parts if part.bytes):
            free = [c for c in part.name.upper() if c not in found.values()]
            found.setdefault(part.name, free[0] if free else "?")
    return found


def _line(bar: Bar, letters: dict[str, str], room: int) -> str:
    """A letter at least for each part and for what is free; the largest part gives way."""
    parts = [part for part in bar.parts if part.bytes]
    sizes = [max(1, round(room * part.bytes / bar.total)) for part in parts]
    over = sum(sizes) - (room - (bar.free > 0))
    if over > 0:
        sizes[sizes.index(max(sizes))] -= over
    drawn = [letters[part.name] * size for part, size in zip(parts, sizes, strict=True)]
    return "".join(drawn).ljust(room, FREE)


def _sum(bar: Bar) -> str:
    used = (bar.total - bar.free) / GIB
    return f"{used:.1f} of {bar.total / GIB:.1f} GiB, {bar.free / GIB:.1f} free"


def _legend(bars: Sequence[Bar], letters: dict[str, str]) -> str:
    """Letter, name and size of each part, as it is in the first bar."""
    sizes = {part.name: part.bytes for part in bars[0].parts}
    named = [
        f"{letter} {name} {sizes.get(name, 0) / GIB:.1f}"
        for name, letter in letters.items()
        if sizes.get(name, 0)
    ]
    return "GiB: " + ", ".join(named)


def bars_svg(bars: Sequence[Bar], *, title: str) -> str:
    """Stacked bars against the total, a legend with the sizes of the first bar below."""
    names = [part.name for part in bars[0].parts if part.bytes]
    color = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(names)}
    per_row = int((LEFT + BAR + RIGHT) // LEGEND)
    height = 30 + ROW * len(bars) + 22 * (-(-len(names) // per_row)) + 14
    parts = [opening(LEFT + BAR + RIGHT, height, title=title), words(16, 22, title)]
    for place, bar in enumerate(bars):
        parts += _bar(bar, 34 + ROW * place, color)
    sizes = {part.name: part.bytes for part in bars[0].parts}
    for place, name in enumerate(names):
        x = 16 + LEGEND * (place % per_row)
        y = 34 + ROW * len(bars) + 22 * (place // per_row)
        parts.append(box(x, y, 12, 12, color[name]))
        parts.append(words(x + 18, y + 10.5, f"{name} {sizes[name] / GIB:.1f} GiB"))
    return "\n".join([*parts, "</svg>\n"])


def _bar(bar: Bar, y: float, color: dict[str, str]) -> list[str]:
    drawn = [words(16, y + 15, bar.label), box(LEFT, y, BAR, HEIGHT, TINT)]
    at = LEFT
    for part in bar.parts:
        size = min(BAR * part.bytes / bar.total, LEFT + BAR - at)
        if size > 0:
            says = f"{part.name} {part.bytes / GIB:.2f} GiB"
            drawn.append(box(at, y, size, HEIGHT, color.get(part.name, LINE), says=says))
        at += max(size, 0)
    drawn.append(
        words(LEFT + BAR + 10, y + 15, f"{bar.free / GIB:.1f} of {bar.total / GIB:.1f} free")
    )
    return drawn
