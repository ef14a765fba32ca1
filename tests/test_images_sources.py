"""What layers are made of: nix/images/tools/layer_sources.py and its builder."""

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

import layer_sources
from layers import content, members, written
from tar_layer import OPAQUE, Entry, Refused

TOOLS = Path(__file__).parent.parent / "nix" / "images" / "tools"


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


def unpacked(package: bytes) -> bytes:
    return lzma.decompress(package[package.index(b"data.tar.xz") + 60 :])


def repacked(package: bytes, data: bytes) -> bytes:
    """The package with another data.tar.xz, its last member, and the size of that."""
    at = package.index(b"data.tar.xz")
    head = package[at : at + 48] + f"{len(data):<10}`\n".encode()
    return package[:at] + head + data


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: b"PK" + raw[2:], "is no Debian package"),
        (lambda raw: raw.replace(b"data.tar.xz ", b"data.tar.zst"), "only .xz and .gz are read"),
        (lambda raw: raw.replace(b"data.tar.xz", b"tada.tar.xz"), "has no data.tar"),
        (lambda raw: raw[:-10], "ends 10 bytes before its data.tar.xz"),
        (lambda raw: raw[:170], "cannot be read: invalid literal"),
        (lambda raw: raw[:-20] + bytes(20), "cannot be read: Corrupt"),
        (lambda raw: repacked(raw, lzma.compress(b"no tar")), "cannot be read: .*"),
        (lambda raw: repacked(raw, lzma.compress(unpacked(raw)[:600])), "unexpected end of data"),
        (
            lambda raw: repacked(raw, lzma.compress(unpacked(raw))[:-12]),
            "cannot be read: Compressed",
        ),
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
        ({"pkg/a": b"a"}, {"pkg/a": "pkg/a"}, r"has the line \['pkg/a'\]"),
        ({"pkg/a": b"a"}, {"pkg/b": " "}, r"has the line \[' '\]"),
        ({"pkg/a": b"a"}, {"pkg/a": "pkg/a,sha256=A,1"}, "cannot be read: "),
        ({"pkg/a": b"a"}, {"pkg/b": "pkg/b,sha256=AAAA,1"}, "pkg/b stands in RECORD of .*not have"),
        ({"pkg-1.0.data/headers/h": b"h"}, None, "expected one of purelib"),
    ],
)
def test_a_wheel_that_is_not_its_record_is_refused(
    tmp_path: Path, files: dict[str, bytes], record: dict[str, str] | None, says: str
) -> None:
    source = wheel(tmp_path, files, record=record)
    with pytest.raises(Refused, match=f"^D187 .*{says}"):
        written(*layer_sources.read(source, scratch=tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"no zip of " + raw[:10],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b"elf", b"fle", 1),  # the member itself: its CRC is another
        lambda raw: raw.replace(b"METADATA,sha256", b"METADAT\xff,sha256"),
    ],
    ids=["no zip", "half", "member", "record"],
)
def test_a_wheel_that_is_no_whole_zip_is_refused_in_one_line(tmp_path: Path, damage: Any) -> None:
    source = wheel(tmp_path, FILES)
    path = Path(source["path"])
    path.write_bytes(damage(path.read_bytes()))
    done = build({"sources": [source]}, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("D187 ")
    assert " cannot be read: " in done.stderr
    assert done.stderr.count("\n") == 1


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
