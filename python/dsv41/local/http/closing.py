"""How a formed answer is brought to its end: what closes the place that it has come to.

Follows the text of an answer (JSON, or tool-call markup with JSON and plain strings in it) only
closely enough to tell a quote that ends a string from one that begins it.
"""

from __future__ import annotations

from dsv41.local.http.dsml import BAR, CLOSE

_PLAIN = b'string="true">'
_JSON = b'string="false">'
_LONGEST = 64  # bytes of the text's end that are kept to recognize the tags


class Position:
    """Where the next byte falls: in the markup, in a plain string, in JSON, in a string of it."""

    def __init__(self, *, markup: bool) -> None:
        self._markup = markup
        self._place = "markup" if markup else "json"
        self._in_string = False
        self._escaped = False
        self._end = b""

    def feed(self, text: bytes) -> None:
        """Go over the next bytes of the answer."""
        for byte in text:
            self._end = (self._end + bytes([byte]))[-_LONGEST:]
            step = {"markup": self._in_markup, "plain": self._in_plain, "json": self._in_json}
            step[self._place](byte)

    def closers(self) -> tuple[str, ...]:
        """Texts of single tokens that lead to the end, the shortest way first."""
        if self._place == "plain" and self._end.endswith(b"</"):
            return (BAR,)
        if self._place != "json":
            return ("</",)
        if self._in_string:
            return ('"',)
        return ("</", "}", "]", ",", '"', "0", "null", "[", " ")

    def _in_markup(self, _: int) -> None:
        if self._end.endswith(_PLAIN):
            self._place = "plain"
        elif self._end.endswith(_JSON):
            self._place = "json"

    def _in_plain(self, _: int) -> None:
        if self._end.endswith(CLOSE.encode()):
            self._place = "markup"

    def _in_json(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = byte == ord("\\")
            self._in_string = byte != ord('"')
        elif byte == ord('"'):
            self._in_string = True
        elif byte == ord("<") and self._markup:
            self._place = "markup"
