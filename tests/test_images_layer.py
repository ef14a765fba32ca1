"""Layers as deterministic tars: nix/images/tools/tar_layer.py."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layers import content, entry, members, refused, written
from tar_layer import Bytes, Entry, Layer, Refused, Span


def test_names_are_sorted_and_parents_added_with_nobodys_marks() -> None:
    data = written(entry("b/c/d", "text", mode=0o600), entry("a"), entry("b-b"))
    found = members(data)
    assert [m.name for m in found] == ["a", "b", "b-b", "b/c", "b/c/d"]
    assert [m.name for m in found if m.isdir()] == ["b", "b/c"]
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found} == {(0, 0, "", "", 1)}
    assert found[-1].mode == 0o600
    assert not [m for m in found if m.pax_headers]
    assert content(data, "b/c/d") == b"text"


def test_the_bytes_are_these() -> None:
    """Any change here changes the digest of every image that was ever pinned."""
    long = "long/" + "n" * 120
    data = written(
        entry("dir", kind="dir", mode=0o1777),
        entry("link", kind="link", target="../elsewhere"),
        entry(long, "x" * 700),
        entry("again", kind="hard", target=long),
        entry("umlaut-\u00e4", "y"),
    )
    assert hashlib.sha256(data).hexdigest() == (
        "f3f5dd96fe5e7115bd1b98ac3bd232777c6b4514ff336b1df8969c0628e5320d"
    )
    assert len(data) % tarfile.BLOCKSIZE == 0


def test_long_and_foreign_names_take_pax_records_and_not_gnus() -> None:
    long = "d/" * 80 + "n" * 150
    data = written(
        entry(long, "1"), entry("\u00fc", "2"), entry("l", kind="link", target="t" * 120)
    )
    kinds = {data[at + 156 : at + 157] for at in range(0, len(data), 512) if _is_header(data, at)}
    assert b"x" in kinds
    assert not kinds & {b"L", b"K"}
    assert content(data, long) == b"1"
    assert content(data, "\u00fc") == b"2"
    assert next(m for m in members(data) if m.name == "l").linkname == "t" * 120


def _is_header(data: bytes, at: int) -> bool:
    return data[at + 257 : at + 262] == b"ustar"


def test_order_of_adding_changes_nothing() -> None:
    entries = [entry("x/y", "1"), entry("x", kind="dir", mode=0o755), entry("a", "2")]
    assert written(*entries) == written(*reversed(entries))


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.lists(st.text("abc\u00e9 .-", min_size=1, max_size=40), min_size=1, max_size=4).map(
            "/".join
        ),
        st.binary(max_size=1500),
        max_size=8,
    )
)
def test_what_is_taken_comes_out_again(files: dict[str, bytes]) -> None:
    layer = Layer()
    try:
        for path, data in files.items():
            layer.add(Entry(path=path, kind="file", owner="a", data=Bytes(content=data)))
        out = io.BytesIO()
        layer.write(out)
    except Refused:
        unsafe = any(part in (".", "..") for path in files for part in path.split("/"))
        below = any(f"{other}/" in f"{path}/" for path in files for other in files if other != path)
        assert unsafe or below
        return
    found = {m.name: m for m in members(out.getvalue())}
    assert {name for name, m in found.items() if m.isreg()} == set(files)
    assert all(content(out.getvalue(), path) == data for path, data in files.items())


def test_the_first_name_of_hard_links_has_the_bytes() -> None:
    data = written(
        entry("z", "same", mode=0o755),
        entry("m", kind="hard", target="z"),
        entry("n", kind="hard", target="z"),
    )
    first, second, third = members(data)
    assert (first.name, first.isreg(), first.mode) == ("m", True, 0o755)
    assert [(m.name, m.islnk(), m.linkname) for m in (second, third)] == [
        ("n", True, "m"),
        ("z", True, "m"),
    ]
    assert content(data, "m") == content(data, "z") == b"same"


def test_a_hard_link_to_nothing_is_refused() -> None:
    assert "is a hard link to b, which is no file here" in refused(
        entry("a", kind="hard", target="b")
    )


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../up", "a/../b", "a//b", "a/", "", "./a", "nul\0", "\udc80"]
)
def test_unsafe_names_are_refused(path: str) -> None:
    assert refused(entry(path)).startswith("D184 a brings the unsafe name")


@pytest.mark.parametrize("path", [".wh.x", "d/.wh..wh..opq"])
def test_whiteouts_are_refused_unless_asked(path: str) -> None:
    assert "would hide a file of a lower layer" in refused(entry(path))
    assert members(written(entry(path, asked=True)))[-1].name == path


def test_two_owners_of_one_path_are_refused() -> None:
    both = entry("p/q", "1", owner="one"), entry("p/q", "1", owner="two")
    assert refused(*both) == "D184 p/q comes from one and from two (file 644, file 644)."


def test_a_folder_may_have_many_owners_but_one_mode() -> None:
    both = (
        entry("d", kind="dir", mode=0o755, owner="one"),
        entry("d", kind="dir", mode=0o755, owner="two"),
    )
    assert len(members(written(*both))) == 1
    other = entry("d", kind="dir", mode=0o1777, owner="three")
    assert "(dir 755, dir 1777)" in refused(*both, other)


def test_a_rule_settles_a_collision_and_nothing_else() -> None:
    both = entry("p", "1", owner="one"), entry("p", "2", owner="two")
    assert content(written(*both, rules={"p": "two"}), "p") == b"2"
    assert members(written(*both, rules={"p": None})) == []
    assert "a rule names other, and nothing had to give way" in refused(
        entry("p"), rules={"other": "one"}
    )


def test_nothing_lies_below_a_link() -> None:
    link = entry("lib", kind="link", target="usr/lib", owner="root")
    assert refused(link, entry("lib/x", owner="deb")) == (
        "D184 lib/x of deb lies below lib, which is no folder in root."
    )


def test_set_user_id_is_dropped() -> None:
    found = members(written(entry("su", mode=0o4755), entry("w", mode=0o2755)))
    assert [m.mode for m in found] == [0o755, 0o755]


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short"
    file.write_bytes(b"12")
    late = Entry(path="a", kind="file", owner="a", data=Span(path=file, size=5))
    assert "ends 3 bytes before it should" in refused(late)
