"""Draw docs/evidence/rows.svg from docs/evidence/rows.json: rows per second of every contender."""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "evidence"
WIDTH, LEFT, BAR, STEP = 760, 190, 16, 24
INK, FILL, RANGE = "#222", "#7a9cc6", "#1d3557"


def main() -> int:
    """Write the picture."""
    figures = json.loads((FOLDER / "rows.json").read_text(encoding="utf-8"))["figures"]
    kept = {name: kinds["rows_per_second"] for name, kinds in figures.items()}
    kept = {name: rate for name, rate in kept.items() if "checked" not in name}
    top = max(rate["max"] for rate in kept.values())
    scale = (WIDTH - LEFT - 90) / top
    height = STEP * len(kept) + 40
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}">'
        ),
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<text x="10" y="18">rows per second: median (bar), least to most (line)</text>',
    ]
    for number, (name, rate) in enumerate(kept.items()):
        at = 30 + STEP * number
        middle, low, high = (LEFT + rate[key] * scale for key in ("median", "min", "max"))
        y = at + BAR / 2
        lines += [
            f'<text x="{LEFT - 8}" y="{at + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{at}" width="{middle - LEFT:.1f}" height="{BAR}" fill="{FILL}"/>',
            f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="{RANGE}" stroke-width="2"/>',
            f'<text x="{high + 8:.1f}" y="{at + 13}">{rate["median"] / 1e3:.1f}k</text>',
        ]
    text = "\n".join([*lines, "</svg>"]) + "\n"
    (FOLDER / "rows.svg").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
