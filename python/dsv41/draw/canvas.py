"""What all pictures share: colors, the opening of an SVG, words on it."""

from __future__ import annotations

from html import escape

INK, PAPER, LINE, TINT = "#1c2733", "#ffffff", "#5b6b7a", "#e8f0f7"
# colors that stay apart for color-blind eyes (Okabe and Ito, one of Tol's)
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#999999",
    "#332288",
)


def opening(width: float, height: float, *, title: str, top: float = 0) -> str:
    """The first lines of an SVG of that size, with its title and a white ground."""
    words = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top:g} {width:g} {height:g}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{words}">\n'
        f"<title>{words}</title>\n"
        f'<rect y="{top:g}" width="100%" height="100%" fill="{PAPER}"/>'
    )


def words(x: float, y: float, text: str, *, anchor: str = "start", color: str = INK) -> str:
    """A line of text."""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{place} fill="{color}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, *, says: str = "") -> str:
    """A filled rectangle, with words that show when the pointer rests on it."""
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
    return f"<rect {shape}><title>{escape(says)}</title></rect>" if says else f"<rect {shape}/>"
