"""`dsv41 pins verify` over real sockets: a mirror on loopback that serves well, badly or never."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dsv41 import pins
from dsv41.cli import main
from dsv41.host import free_port

NIX = Path(os.environ.get("NIX_PREFIX", "/opt/nix-debian")) / "bin"
needs_nix = pytest.mark.skipif(
    not (NIX / "nix-hash").exists() and shutil.which("nix-hash") is None,
    reason="nix is not installed; scripts/get-nix.sh gets it",
)
COMMIT = "a1" * 20
PATCH_URL = f"https://files.example/owner/name/{COMMIT}/fix.patch"
PATCH = b"--- a\n+++ b\n" * 1000


@dataclass
class Mirror:
    """What is served below which path; `cut` and `chunked` end a body early."""

    url: str = ""
    bodies: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    chunked: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", f"{NIX}:{os.environ['PATH']}")
    served = Mirror()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            served.asked.append(name)
            body = served.bodies.get(name)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            if name in served.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                body = b"%x\r\n%s" % (len(body) + 100, body)
            else:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = name in served.cut or name in served.chunked
            self.wfile.write(body[: len(body) // 2] if name in served.cut else body)
            self.close_connection = cut

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def empty_files(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return made.getvalue()


# no archive, and archives by what is in them: several tops, a file for a top, nothing
NO_TREES = {name: empty_files(*name.split()) for name in ("a/x b/x", "a/x x", "x", " ")}
NO_TREES["no archive"] = b"no archive"


def archive_of(text: str) -> bytes:
    """An archive as a forge makes it: one top folder, a file, a program and a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, mode in (("file", 0o644), ("bin/program", 0o755)):
            entry = tarfile.TarInfo(f"name-{COMMIT}/{name}")
            entry.size, entry.mode = len(text), mode
            tar.addfile(entry, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(f"name-{COMMIT}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "file"
        tar.addfile(link)
    return made.getvalue()


@dataclass
class Checkout:
    """A checkout with a patch in its manifest and, perhaps, an input in its lock."""

    root: Path
    archive: bytes = field(default_factory=lambda: archive_of("a source\n"))

    def write(self, *, locked: dict[str, str] | None = None) -> None:
        rows = [f"fix.patch {COMMIT} {hashlib.sha256(PATCH).hexdigest()} {PATCH_URL} MIT"]
        nodes: dict[str, object] = {"root": {"inputs": {}}}
        if locked is not None:
            digest = hashlib.sha256(self.archive).hexdigest()
            url = f"https://github.com/owner/name/archive/{COMMIT}.tar.gz"
            rows.append(f"sglang {COMMIT} {digest} {url} Apache-2.0")
            at = {"type": "github", "owner": "owner", "repo": "name", "rev": COMMIT} | locked
            nodes = {"root": {"inputs": {"sglang": "sglang"}}, "sglang": {"locked": at}}
        self.root.mkdir(exist_ok=True)
        (self.root / "nix").mkdir(exist_ok=True)
        (self.root / pins.MANIFEST).write_text("\n".join(rows) + "\n")
        lock = {"nodes": nodes, "root": "root", "version": 7}
        (self.root / pins.LOCK).write_text(json.dumps(lock, indent=2, sort_keys=True) + "\n")
        (self.root / pins.FOR_NIX).write_text(pins.for_nix(self.read()))

    def read(self) -> tuple[pins.Pin, ...]:
        manifest, lock = (self.root / name for name in (pins.MANIFEST, pins.LOCK))
        return pins.read(manifest.read_text(), lock.read_text())

    def bytes(self) -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in self.root.rglob("*") if p.is_file()}

    def verify(self, mirror: str, *more: str) -> int:
        return main(["pins", "verify", "--root", str(self.root), "--mirror", mirror, *more])


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout")
    made.write()
    return made


PATCH_PATH = PATCH_URL.removeprefix("https://")
ARCHIVE_PATH = f"github.com/owner/name/archive/{COMMIT}.tar.gz"


def test_whole_bytes_are_accepted(
    mirror: Mirror, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.bodies[PATCH_PATH] = PATCH
    before = checkout.bytes()
    assert checkout.verify(mirror.url) == 0
    assert "ok     fix.patch" in capsys.readouterr().out
    assert mirror.asked == [PATCH_PATH]
    assert checkout.bytes() == before


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("tampered", "D175", "pinned is"),
        ("cut", "D176", f"of {len(PATCH)} bytes"),
        ("chunked", "D176", "ended early"),
        ("missing", "D176", "answers 404"),
    ],
)
def test_other_bytes_are_refused(
    mirror: Mirror,
    checkout: Checkout,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    code: str,
    says: str,
) -> None:
    if fault != "missing":
        mirror.bodies[PATCH_PATH] = PATCH + b"!" * (fault == "tampered")
    if fault in ("cut", "chunked"):
        getattr(mirror, fault).add(PATCH_PATH)
    before = checkout.bytes()
    assert checkout.verify(mirror.url, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dsv41.pins-verify/1"
    assert (document["status"], document["wrote"]) == ("fail", False)
    (result,) = document["pins"]
    assert (result["status"], result["code"]) == ("fail", code)
    assert says in result["says"]
    assert checkout.bytes() == before


def test_offline_it_refuses_and_writes_nothing(
    mirror: Mirror, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = checkout.bytes()
    nobody = f"http://127.0.0.1:{free_port('127.0.0.1', 23450)}"
    assert checkout.verify(nobody) == 3
    said = capsys.readouterr().err
    assert "D177" in said
    assert "Connection refused" in said
    assert mirror.asked == []
    assert checkout.bytes() == before


def test_without_nix_an_input_is_refused_before_anything_is_fetched(
    mirror: Mirror,
    checkout: Checkout,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkout.write(locked={})
    mirror.bodies[PATCH_PATH] = PATCH
    monkeypatch.setenv("PATH", "/nowhere")
    assert checkout.verify(mirror.url) == 2
    assert "D178" in capsys.readouterr().err
    assert mirror.asked == []
    assert checkout.verify(mirror.url, "fix.patch") == 0


def nar_hash(archive: bytes, folder: Path) -> str:
    """The narHash by nix's own fetcher, which is not what `pins verify` runs."""
    (folder / "source.tar.gz").write_bytes(archive)
    nix = [str(NIX / "nix"), "--extra-experimental-features", "nix-command flakes"]
    url = f"file://{folder / 'source.tar.gz'}"
    fetched = subprocess.run(
        [*nix, "eval", "--impure", "--raw", "--expr", f'(fetchTree "tarball+{url}").narHash'],
        check=True,
        capture_output=True,
        text=True,
    )
    return fetched.stdout


@needs_nix
def test_a_missing_nar_hash_is_computed_and_written(
    mirror: Mirror, checkout: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.write(locked={})
    mirror.bodies = {PATCH_PATH: PATCH, ARCHIVE_PATH: checkout.archive}
    expected = nar_hash(checkout.archive, tmp_path)
    before = checkout.bytes()
    assert checkout.verify(mirror.url, "--dry-run") == 0
    assert checkout.bytes() == before
    assert checkout.verify(mirror.url) == 0
    assert expected in capsys.readouterr().out
    assert {pin.name: pin.nar_hash for pin in checkout.read()}["sglang"] == expected
    assert (checkout.root / pins.FOR_NIX).read_text() == pins.for_nix(checkout.read())
    after = checkout.bytes()
    assert checkout.verify(mirror.url) == 0
    assert checkout.bytes() == after


@needs_nix
@pytest.mark.parametrize("fault", ["nar_hash", "archive", *NO_TREES])
def test_a_fault_anywhere_writes_nothing(
    mirror: Mirror, checkout: Checkout, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    checkout.archive = NO_TREES.get(fault, checkout.archive)
    checkout.write(locked={"narHash": f"sha256-{'A' * 43}="} if fault == "nar_hash" else {})
    served = archive_of("another source\n") if fault == "archive" else checkout.archive
    mirror.bodies = {PATCH_PATH: PATCH, ARCHIVE_PATH: served}
    before = checkout.bytes()
    assert checkout.verify(mirror.url) == 1
    out = capsys.readouterr().out
    assert "ok     fix.patch" in out
    assert f"BAD    sglang  {'D176' if fault in NO_TREES else 'D175'}" in out
    assert checkout.bytes() == before


def test_pins_that_nix_reads_from_an_older_edit_are_refused(
    mirror: Mirror, checkout: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout.root / pins.FOR_NIX).write_text("{}\n")
    assert checkout.verify(mirror.url) == 1
    assert "D179" in capsys.readouterr().err


def test_a_folder_without_a_manifest_and_an_unknown_name_are_refused(
    mirror: Mirror,
    checkout: Checkout,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    assert checkout.verify(mirror.url, "nothing") == 2
    assert "Nothing is pinned as nothing" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["pins"]) == 2
    assert "D170" in capsys.readouterr().err
    monkeypatch.chdir(checkout.root / "nix")
    assert main(["pins"]) == 0
    assert "fix.patch" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["pins", "--json", "--root", str(checkout.root)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(pins.for_nix(checkout.read()))
