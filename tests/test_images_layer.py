"""Layers as deterministic tars: nix/images/tools/tar_layer.py and its sources."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layer_sources
from tar_layer import OPAQUE, Bytes, Entry, Layer, Refused, Span

TOOLS = Path(__file__).parent.parent / "nix" / "images" / "tools"


def entry(path: str, text: str = "", *, owner: str = "a", **more: Any) -> Entry:
    kind = more.pop("kind", "file")
    return Entry(path=path, kind=kind, owner=owner, data=Bytes(content=text.encode()), **more)


def written(*entries: Entry, rules: dict[str, str | None] | None = None) -> bytes:
    layer = Layer(rules=rules or {})
    layer.extend(entries)
    out = io.BytesIO()
    layer.write(out)
    return out.getvalue()


def members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()


def content(data: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file = archive.extractfile(path)
        assert file is not None
        return file.read()


def refused(*entries: Entry, rules: dict[str, str | None] | None = None) -> str:
    with pytest.raises(Refused) as caught:
        written(*entries, rules=rules)
    return str(caught.value)


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


# sources


def read(source: dict[str, Any], tmp_path: Path) -> dict[str, Entry]:
    return {e.path: e for e in layer_sources.read(source, scratch=tmp_path)}


def test_a_tree_has_files_and_links_without_bytecode(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "m.pyc").write_bytes(b"")
    (folder / "run").write_text("#!")
    (folder / "run").chmod(0o700)
    (folder / "m.py").write_text("1")
    (folder / "m.py").chmod(0o600)
    (folder / "to").symlink_to("m.py")
    found = read({"type": "tree", "path": str(folder), "to": "opt", "owner": "o"}, tmp_path)
    assert {path: (e.kind, e.mode) for path, e in found.items() if e.kind == "file"} == {
        "opt/m.py": ("file", 0o644),
        "opt/run": ("file", 0o755),
    }
    assert found["opt/to"].target == "m.py"
    assert set(found) == {"opt/m.py", "opt/run", "opt/to"}


def test_a_link_into_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "l").symlink_to("/nix/store/x")
    with pytest.raises(Refused, match="outside the image"):
        read({"type": "tree", "path": str(tmp_path / "t"), "to": "", "owner": "o"}, tmp_path)


def test_replace_hides_what_a_folder_had(tmp_path: Path) -> None:
    found = read({"type": "replace", "to": "opt/x"}, tmp_path)
    data = written(*found.values())
    assert members(data)[-1].name == f"opt/x/{OPAQUE}"


def deb(tmp_path: Path, *infos: tuple[tarfile.TarInfo, bytes], name: str = "p_1_all.deb") -> Path:
    """A Debian package of these members."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, text in infos:
            archive.addfile(info, io.BytesIO(text))
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": b"odd",
        "data.tar.xz": lzma.compress(data.getvalue()),
    }
    body = b"!<arch>\n"
    for part, raw in parts.items():
        body += f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(raw):<10}`\n".encode()
        body += raw + b"\n" * (len(raw) % 2)
    path = tmp_path / name
    path.write_bytes(body)
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    made.uid, made.gid, made.uname = 33, 44, "www-data"
    for key, value in more.items():
        setattr(made, key, value)
    return made


def test_a_debian_package_is_read_below_merged_usr(tmp_path: Path) -> None:
    path = deb(
        tmp_path,
        (info("./", tarfile.DIRTYPE, mode=0o755), b""),
        (info("./lib/", tarfile.DIRTYPE, mode=0o755), b""),
        (info("./lib/x86/libc.so", size=3, mode=0o4755), b"elf"),
        (info("./lib/x86/libc.so.6", tarfile.LNKTYPE, linkname="./lib/x86/libc.so"), b""),
        (info("./usr/bin/sh", tarfile.SYMTYPE, linkname="dash"), b""),
        (info("./usr/share/man/man1/sh.1", size=1), b"m"),
        (info("./usr/share/manifest", size=1), b"k"),
    )
    source = {"type": "deb", "path": str(path), "exclude": ["usr/share/man"]}
    data = written(*layer_sources.read(source, scratch=tmp_path))
    found = {m.name: m for m in members(data)}
    assert found["usr/lib/x86/libc.so"].mode == 0o755
    assert found["usr/lib/x86/libc.so.6"].linkname == "usr/lib/x86/libc.so"
    assert found["usr/bin/sh"].linkname == "dash"
    assert content(data, "usr/lib/x86/libc.so") == b"elf"
    assert {m.uid for m in found.values()} == {0}
    assert "usr/share/manifest" in found
    assert "usr/share/man/man1/sh.1" not in found


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: b"PK" + raw[2:], "is no Debian package"),
        (lambda raw: raw.replace(b"data.tar.xz ", b"data.tar.zst"), "only .xz and .gz are read"),
        (lambda raw: raw.replace(b"data.tar.xz", b"tada.tar.xz"), "has no data.tar"),
    ],
)
def test_a_broken_debian_package_is_refused(tmp_path: Path, damage: Any, says: str) -> None:
    path = deb(tmp_path, (info("./a", size=1), b"a"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Refused, match=f"^D187 p_1_all.deb .*{says}"):
        read({"type": "deb", "path": str(path)}, tmp_path)


def test_a_device_in_a_package_is_refused(tmp_path: Path) -> None:
    path = deb(tmp_path, (info("./dev/null", tarfile.CHRTYPE), b""))
    with pytest.raises(Refused, match="is no file, folder or link"):
        read({"type": "deb", "path": str(path)}, tmp_path)


def wheel(
    tmp_path: Path, files: dict[str, bytes], *, record: dict[str, str] | None = None
) -> dict[str, Any]:
    """A wheel source of these members; `record` overrides lines of RECORD."""
    name = "pkg-1.0-py3-none-any.whl"
    lines = {}
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines[path] = f"{path},sha256={digest},{len(data)}"
    lines["pkg-1.0.dist-info/RECORD"] = "pkg-1.0.dist-info/RECORD,,"
    lines.update(record or {})
    with zipfile.ZipFile(tmp_path / "stored", "w") as archive:
        for path, data in files.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (0o755 if path.endswith(".so") else 0o600) << 16
            archive.writestr(member, data)
        text = "".join(f"{line}\n" for line in lines.values() if line)
        archive.writestr("pkg-1.0.dist-info/RECORD", text)
    place = {"prefix": "opt/x", "site": "opt/x/site"}
    return {"type": "wheel", "path": str(tmp_path / "stored"), "file": name, **place}


FILES = {
    "pkg/__init__.py": b"1",
    "pkg/core.so": b"elf",
    "pkg-1.0.data/scripts/tool": b"#!python\nprint()\n",
    "pkg-1.0.data/scripts/ninja": b"\x7fELF\x00",
    "pkg-1.0.data/data/share/x": b"x",
    "pkg-1.0.data/platlib/deep/y.py": b"y",
    "pkg-1.0.dist-info/METADATA": b"Name: pkg\n",
}


def test_a_wheel_goes_where_its_standard_says(tmp_path: Path) -> None:
    data = written(*layer_sources.read(wheel(tmp_path, FILES), scratch=tmp_path))
    found = {m.name: m.mode for m in members(data) if m.isreg()}
    assert found == {
        "opt/x/bin/ninja": 0o755,
        "opt/x/bin/tool": 0o755,
        "opt/x/share/x": 0o644,
        "opt/x/site/deep/y.py": 0o644,
        "opt/x/site/pkg-1.0.dist-info/METADATA": 0o644,
        "opt/x/site/pkg-1.0.dist-info/RECORD": 0o644,
        "opt/x/site/pkg/__init__.py": 0o644,
        "opt/x/site/pkg/core.so": 0o755,
    }
    assert content(data, "opt/x/bin/tool") == b"#!/opt/x/bin/python\nprint()\n"
    assert content(data, "opt/x/bin/ninja") == b"\x7fELF\x00"


@pytest.mark.parametrize(
    ("files", "record", "says"),
    [
        ({"pkg/a": b"a"}, {"pkg/a": "pkg/a,sha256=AAAA,1"}, "its RECORD says 000000"),
        ({"pkg/a": b"a"}, {"pkg/a": ""}, "pkg/a does not stand in RECORD"),
        ({"pkg/a": b"a"}, {"pkg/a": "pkg/a,,"}, "has no hash of pkg/a"),
        ({"pkg/a": b"a"}, {"pkg/a": "pkg/a,md5=AAAA,1"}, "has a md5 of pkg/a"),
        ({"pkg-1.0.data/headers/h": b"h"}, None, "expected one of purelib"),
    ],
)
def test_a_wheel_that_is_not_its_record_is_refused(
    tmp_path: Path, files: dict[str, bytes], record: dict[str, str] | None, says: str
) -> None:
    source = wheel(tmp_path, files, record=record)
    with pytest.raises(Refused, match=f"^D187 .*{says}"):
        written(*layer_sources.read(source, scratch=tmp_path))


def test_a_wheel_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    source = wheel(tmp_path, {"../../etc/passwd": b""})
    with pytest.raises(Refused, match="unsafe name"):
        written(*layer_sources.read(source, scratch=tmp_path))


def test_a_wheel_of_another_name_is_refused(tmp_path: Path) -> None:
    source = {**wheel(tmp_path, FILES), "file": "other-1.0-py3-none-any.whl"}
    with pytest.raises(Refused, match=r"has no other-1.0.dist-info/RECORD"):
        read(source, tmp_path)


def build(spec: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "spec").write_text(json.dumps(spec))
    files = [str(tmp_path / "spec"), str(tmp_path / "out")]
    command = [sys.executable, str(TOOLS / "build_layer.py"), *files]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_the_builder_writes_the_same_layer_twice_whatever_the_umask(tmp_path: Path) -> None:
    spec = {
        "sources": [
            wheel(tmp_path, FILES),
            {"type": "file", "to": "etc/x", "text": "x\n", "mode": "600"},
            {"type": "link", "to": "bin", "target": "usr/bin"},
            {"type": "dir", "to": "tmp", "mode": "1777"},
        ]
    }
    seen = set()
    for mask in (0o022, 0o077):
        old = os.umask(mask)
        try:
            assert build(spec, tmp_path).returncode == 0
        finally:
            os.umask(old)
        seen.add((tmp_path / "out").read_bytes())
    (data,) = seen
    modes = {m.name: m.mode for m in members(data)}
    assert (modes["etc/x"], modes["tmp"]) == (0o600, 0o1777)
    assert stat.S_ISREG((tmp_path / "out").stat().st_mode)


def test_the_builder_says_in_one_line_what_it_refuses(tmp_path: Path) -> None:
    one = {"type": "file", "to": "a", "text": ""}
    done = build({"sources": [one, one]}, tmp_path)
    assert done.returncode == 1
    assert done.stderr == ("D184 a comes from the image and from the image (file 644, file 644).\n")
