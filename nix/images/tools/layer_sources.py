"""What a layer is made of: Debian packages, wheels, folders, single files and links.

Each source is read into entries of `tar_layer` without being unpacked: a wheel's members go
straight from the zip into the tar; a Debian package's come out of its decompressed data.tar. No
maintainer script and no foreign program runs, so any machine builds for any architecture.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import lzma
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from stub_library import MACHINES, functions_of, machine_of, stub_library
from tar_layer import OPAQUE, Bytes, Entry, Refused, Span, Zipped, readable

_COLUMNS = 3  # of a line of RECORD
# folders of the root that Debian keeps below /usr ("merged /usr"); packages may name either
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_COMPRESSORS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, "": open}


def read(source: Mapping[str, Any], *, scratch: Path) -> Iterator[Entry]:
    """The entries of one source of a layer's specification.

    Raises:
        Refused: D184 or D187, naming the source and what is wrong with it.
    """
    known = {
        "deb": lambda: debian(Path(source["path"]), source.get("exclude", ()), scratch=scratch),
        "wheel": lambda: _only(source, wheel(Path(source["path"]), source["file"],
                                             prefix=source["prefix"], site=source["site"],
                                             amended=source.get("amended", {}))),
        "tree": lambda: tree(Path(source["path"]), source["to"], owner=source["owner"]),
        "file": lambda: _file(source),
        "link": lambda: _link(source),
        "dir": lambda: _folder(source),
        "replace": lambda: _replace(source),
        "copy": lambda: _copy(source),
        "stub library": lambda: _stub_library(source),
        "certificates": lambda: _certificates(source, scratch=scratch),
    }  # fmt: skip
    yield from known[source["type"]]()


def _file(source: Mapping[str, Any]) -> Iterator[Entry]:
    data = Bytes(content=source["text"].encode())
    mode = int(source.get("mode", "644"), 8)
    yield Entry(path=source["to"], kind="file", owner="the image", mode=mode, data=data)


def _link(source: Mapping[str, Any]) -> Iterator[Entry]:
    yield Entry(path=source["to"], kind="link", owner="the image", target=source["target"])


def _folder(source: Mapping[str, Any]) -> Iterator[Entry]:
    mode = int(source.get("mode", "755"), 8)
    yield Entry(path=source["to"], kind="dir", owner="the image", mode=mode)


def _only(source: Mapping[str, Any], entries: Iterator[Entry]) -> Iterator[Entry]:
    """All of a wheel, or the paths that `only` lists; Refused D184 where it lacks one."""
    wanted, found = set(source.get("only", ())), 0
    for entry in entries:
        if not wanted or entry.path in wanted:
            found += 1
            yield entry
    if found < len(wanted):
        raise Refused(f"D184 {source['file']} does not have all of {', '.join(sorted(wanted))}.")


def _copy(source: Mapping[str, Any]) -> Iterator[Entry]:
    """One library of the builder's; Refused D184 when it is not for the machine of the image."""
    path, wanted = Path(source["path"]), source["machine"]
    with path.open("rb") as file:
        machine = machine_of(file.read(20))
    if machine != MACHINES[wanted]:
        raise Refused(
            f"D184 {source['to']} of {source['owner']} is no library for {wanted}: its ELF header "
            f"has machine {machine}, expected {MACHINES[wanted]}."
        )
    data = Span(path=path, size=path.stat().st_size)
    yield Entry(path=source["to"], kind="file", owner=source["owner"], mode=0o644, data=data)


def _stub_library(source: Mapping[str, Any]) -> Iterator[Entry]:
    functions = functions_of(Path(source["wheel"]), source["header"])
    data = Bytes(content=stub_library(source["soname"], functions, machine=source["machine"]))
    yield Entry(path=source["to"], kind="file", owner="the image", data=data)


def _certificates(source: Mapping[str, Any], *, scratch: Path) -> Iterator[Entry]:
    """What update-ca-certificates would write: all certificates of the package in one file."""
    folder = "usr/share/ca-certificates/"
    entries = sorted(debian(Path(source["path"]), scratch=scratch), key=lambda e: e.path)
    content = b"".join(
        chunk
        for entry in entries
        if entry.path.startswith(folder) and entry.path.endswith(".crt")
        for chunk in entry.data.chunks()
    )
    if not content:
        raise Refused(f"D184 {Path(source['path']).name} has no certificate in {folder}.")
    yield Entry(path=source["to"], kind="file", owner="the image", data=Bytes(content=content))


def _replace(source: Mapping[str, Any]) -> Iterator[Entry]:
    """Hide everything that lower layers have in a folder."""
    yield Entry(path=f"{source['to']}/{OPAQUE}", kind="file", owner="the image", asked=True)


def tree(folder: Path, to: str, *, owner: str) -> Iterator[Entry]:
    """A folder's files and links, without bytecode; 755 for what is executable, else 644."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if "__pycache__" in relative.parts:
            continue
        name = f"{to}/{relative.as_posix()}" if to else relative.as_posix()
        if path.is_symlink():
            target = str(path.readlink())
            if target.startswith("/nix/"):
                raise Refused(f"D184 {name} of {owner} points to {target}, outside the image.")
            yield Entry(path=name, kind="link", owner=owner, target=target)
        elif path.is_dir():
            yield Entry(path=name, kind="dir", owner=owner, mode=0o755)
        else:
            status = path.stat()
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            data = Span(path=path, size=status.st_size)
            yield Entry(path=name, kind="file", owner=owner, mode=mode, data=data)


def debian(path: Path, exclude: Sequence[str] = (), *, scratch: Path) -> Iterator[Entry]:
    """The files of a Debian package (deb(5)), without the folders in `exclude`.

    `/bin`, `/lib` and their like are taken for their places below `/usr`. `scratch` is a folder for
    the decompressed data, which must live until the layer is written.
    """
    data = scratch / f"{path.name}.tar"
    with readable(path.name), path.open("rb") as file:
        _unpack_data(file, path.name, data)
    with readable(path.name), tarfile.open(data) as archive:
        for member in archive:
            entry = _debian_entry(member, path.name, data)
            if entry and not any(f"{entry.path}/".startswith(f"{away}/") for away in exclude):
                yield entry


def _unpack_data(file: BinaryIO, name: str, out: Path) -> None:
    """Find data.tar in the ar archive and decompress it."""
    if file.read(8) != b"!<arch>\n":
        raise Refused(f"D187 {name} is no Debian package.")
    while header := file.read(60):
        member, size = header[:16].decode().rstrip(" /"), int(header[48:58])
        if member.startswith("data.tar"):
            opener = _COMPRESSORS.get(member.removeprefix("data.tar"))
            if opener is None or opener is open:
                raise Refused(f"D187 {name} has {member}; only .xz and .gz are read.")
            data = file.read(size)
            if len(data) != size:
                raise Refused(f"D187 {name} ends {size - len(data)} bytes before its {member}.")
            with opener(io.BytesIO(data)) as packed, out.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            return
        file.seek(size + size % 2, io.SEEK_CUR)
    raise Refused(f"D187 {name} has no data.tar.")


def _merged(name: str) -> str:
    """A path of a Debian package in the image; "" for the root."""
    name = name.removeprefix(".").strip("/")
    return f"usr/{name}" if name.split("/")[0] in MERGED else name


def _debian_entry(member: tarfile.TarInfo, owner: str, data: Path) -> Entry | None:
    name = _merged(member.name)
    if not name:
        return None
    extra = sorted(set(member.pax_headers) - {"path", "linkpath", "size", "mtime"})
    if extra:
        raise Refused(f"D184 {name} of {owner} has {extra[0]}, which a layer does not carry.")
    if member.isdir():
        return Entry(path=name, kind="dir", owner=owner, mode=member.mode)
    if member.issym():
        return Entry(path=name, kind="link", owner=owner, target=member.linkname)
    if member.islnk():
        return Entry(path=name, kind="hard", owner=owner, target=_merged(member.linkname))
    if not member.isreg():
        raise Refused(f"D184 {name} of {owner} is no file, folder or link.")
    span = Span(path=data, size=member.size, offset=member.offset_data)
    return Entry(path=name, kind="file", owner=owner, mode=member.mode, data=span)


def wheel(
    path: Path, file: str, *, prefix: str, site: str, amended: Mapping[str, str] | None = None
) -> Iterator[Entry]:
    """The files of a wheel (PyPA binary distribution format) below a prefix.

    `file` is the wheel's own name: in the store it may have another. `site` is the folder of the
    packages. The members must be those of RECORD, each with its SHA-256, which is checked while the
    layer is written. `amended` has the SHA-256 (hex) of members that RECORD is wrong about.
    """
    name, version = file.split("-")[:2]
    with readable(file), zipfile.ZipFile(path) as archive:
        record = _record(archive, file, f"{name}-{version}.dist-info")
        right = sorted(
            n for n, digest in (amended or {}).items() if record.get(n) in (None, digest)
        )
        if right:
            raise Refused(f"D187 RECORD of {file} needs no other hash of {right[0]}.")
        record |= amended or {}
        members = [m for m in archive.infolist() if not m.is_dir()]
        missing = sorted(record.keys() - {m.filename for m in members})
        if missing:
            raise Refused(f"D187 {missing[0]} stands in RECORD of {file}, which does not have it.")
        for member in members:
            yield _wheel_entry(archive, member, record, file, prefix=prefix, site=site)


def _record(archive: zipfile.ZipFile, file: str, info: str) -> dict[str, str]:
    """RECORD: member -> SHA-256 in hex; "" for RECORD itself, which has none."""
    names = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/RECORD")]
    if len(names) != 1 or _plain(names[0].partition("/")[0]) != _plain(info):
        raise Refused(f"D187 {file} has no {info}/RECORD.")
    found = {}
    for row in csv.reader(io.StringIO(archive.read(names[0]).decode())):
        if len(row) != _COLUMNS:
            raise Refused(f"D187 RECORD of {file} has the line {row}; expected path, hash, size.")
        name, digest, _ = row
        kind, _, value = digest.partition("=")
        if digest and kind != "sha256":
            raise Refused(f"D187 RECORD of {file} has a {kind} of {name}; expected sha256.")
        if not digest and name != names[0]:
            raise Refused(f"D187 RECORD of {file} has no hash of {name}.")
        found[name] = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    return found


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _wheel_entry(
    archive: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    record: Mapping[str, str],
    file: str,
    *,
    prefix: str,
    site: str,
) -> Entry:
    name, mode = member.filename, member.external_attr >> 16
    if name not in record:
        raise Refused(f"D187 {name} does not stand in RECORD of {file}.")
    if stat.S_ISLNK(mode):
        raise Refused(f"D184 {name} of {file} is a link, which wheels do not have.")
    place, runs = _placed(name, file, prefix=prefix, site=site)
    data: Bytes | Zipped = Zipped(
        archive=Path(str(archive.filename)),
        member=name,
        size=member.file_size,
        sha256=record[name],
    )
    if not record[name] or runs:
        # RECORD has no hash of itself; a script may get another first line
        content = archive.read(member) if not record[name] else b"".join(data.chunks())
        data = Bytes(content=_on_python(content, prefix) if runs else content)
    executable = bool(runs or mode & 0o111)
    return Entry(
        path=place, kind="file", owner=file, mode=0o755 if executable else 0o644, data=data
    )


def _placed(name: str, file: str, *, prefix: str, site: str) -> tuple[str, bool]:
    """Where a member goes, and whether it is a script."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return f"{site}/{name}", False
    kind, _, inner = rest.partition("/")
    folders = {"purelib": site, "platlib": site, "scripts": f"{prefix}/bin", "data": prefix}
    if kind not in folders:
        raise Refused(f"D187 {file} has {name}; expected one of {', '.join(folders)}.")
    return f"{folders[kind]}/{inner}", kind == "scripts"


def _on_python(content: bytes, prefix: str) -> bytes:
    """A script with the image's interpreter in its first line, where the wheel leaves it open."""
    first, newline, rest = content.partition(b"\n")
    if not first.startswith(b"#!python"):
        return content
    return f"#!/{prefix}/bin/python".encode() + newline + rest
