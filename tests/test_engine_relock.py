"""The command lock-engine, and the tool that makes the locks."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import lock_packages
import wheel_contents
from dsv41 import engine_lock, relock
from dsv41.cli import main
from engine_locks import FOLDER, ROOT, copied, edit, newer, wheel

LOCKS = engine_lock.read(FOLDER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


def test_check_tells_each_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock-engine", "--check", "--json", "--root", str(ROOT)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["status"], told["problems"]) == ("dsv41.lock-engine/1", "ok", [])
    assert told["locks"][0] == {
        "lock": "wheels-sglang-arm64.json",
        "packages": 210,
        "bytes": sum(w["size"] for w in LOCKS.wheels["sglang"]["wheels"]),
    }


def test_check_ends_with_1_and_names_the_wheel(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "wheels-vllm-arm64.json", lambda w: newer(w, "torch", "2.14.1"))
    root = str(folder.parent.parent.parent)
    assert main(["lock-engine", "--check", "--root", root]) == 1
    assert (
        "D197 vllm 0.33.0 requires torch==2.14.0, and the lock has 2.14.1."
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    "words", [["--index"], ["--check", "--dry-run"], ["--check", "--until", "x"]]
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock-engine", *words]) == 2
    assert "D199 " in capsys.readouterr().err


def test_changes_tell_versions_and_bytes(folder: Path) -> None:
    def change(lock: dict[str, Any]) -> None:
        newer(lock, "six", "1.99.0")
        wheel(lock, "torch").update(sha256="0" * 64)
        lock["wheels"].remove(wheel(lock, "uvloop"))

    edit(folder / "wheels-sglang-arm64.json", change)
    found = relock.changes(LOCKS, engine_lock.read(folder))
    assert [(c.name, c.now, c.other_bytes) for c in found] == [
        ("six", "1.99.0", False),
        ("torch", "2.14.1", True),
        ("uvloop", None, False),
    ]


# making them, with a stand-in for the tool: it gives what lies in the folder `made`

TOOL = """import shutil, sys
from pathlib import Path
what, listed = sys.argv[1:3]
made = Path(__file__).parent.parent.parent.parent / "made"
if what == "debs":
    print((made / "debs-arm64.json").read_text(), end="")
else:
    engine = Path(listed).stem.removeprefix("requirements-")
    assert sys.argv[4:6] == ["--until", "2026-11-30T00:00:00Z"]
    shutil.copy(made / f"contents-{engine}.json", sys.argv[sys.argv.index("--contents") + 1])
    print((made / f"wheels-{engine}-arm64.json").read_text(), end="")
"""


@pytest.fixture
def made(folder: Path) -> Path:
    """What the tool of a checkout will give: the committed locks, to be changed."""
    root = folder.parent.parent.parent
    (root / relock.TOOL).parent.mkdir()
    (root / relock.TOOL).write_text(TOOL)
    (root / "made").mkdir()
    for file in folder.glob("*.json"):
        (root / "made" / file.name).write_bytes(file.read_bytes())
    return root / "made"


def test_what_changed_is_told_and_written(
    folder: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, lock = str(made.parent), folder / "wheels-vllm-arm64.json"
    before = lock.read_bytes()
    edit(made / lock.name, lambda wheels: newer(wheels, "regex", "2099.1.1"))
    assert main(["lock-engine", "--json", "--dry-run", "--root", root]) == 0
    dry = json.loads(capsys.readouterr().out)
    (change,) = dry["changes"]
    assert (change["lock"], change["name"], change["now"]) == (lock.name, "regex", "2099.1.1")
    assert (dry["wrote"], lock.read_bytes()) == ([], before)
    assert main(["lock-engine", "--check", "--index", "--root", root]) == 1
    assert "D198 regex " in capsys.readouterr().out
    assert main(["lock-engine", "--json", "--root", root]) == 0
    assert json.loads(capsys.readouterr().out)["wrote"] == [lock.name]
    assert lock.read_text() == (made / lock.name).read_text()


def test_locks_that_do_not_agree_are_not_written(
    folder: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = folder / "wheels-sglang-arm64.json"
    before = lock.read_bytes()
    edit(made / lock.name, lambda wheels: newer(wheels, "nvidia-nvvm", "13.5.37"))
    assert main(["lock-engine", "--root", str(made.parent)]) == 1
    assert "D197 nvidia-nvvm 13.5.37 is not of CUDA 13.0" in capsys.readouterr().out
    assert lock.read_bytes() == before


def test_a_superseded_deb_is_told_and_other_bytes_of_it_are_a_problem(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def next_point_release(lock: dict[str, Any]) -> None:
        one = lock["packages"][-1]
        one["file"] = one["file"].replace("-1_", "-2_")
        one["version"] = one["version"].removesuffix("-1") + "-2"

    check = ["lock-engine", "--check", "--index", "--root", str(made.parent)]
    lock = made / "debs-arm64.json"
    edit(lock, lambda debs: debs["packages"][0].update(sha256="0" * 64))
    assert main(check) == 1
    assert "now gives other bytes" in capsys.readouterr().out
    lock.write_bytes((FOLDER / lock.name).read_bytes())
    edit(lock, next_point_release)
    assert main(check) == 0
    told = capsys.readouterr().out
    assert "D198" not in told
    assert " -> " in told


def test_the_last_words_of_a_tool_that_failed_are_told(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made.parent / relock.TOOL).write_text("raise FileNotFoundError('uv')")
    assert main(["lock-engine", "--root", str(made.parent)]) == 2
    assert "FileNotFoundError: uv" in capsys.readouterr().err


# the tool


def test_of_several_wheels_the_most_specific_is_locked() -> None:
    names = [
        "a-1-py3-none-any.whl",
        "a-1-cp38-abi3-manylinux_2_34_aarch64.whl",
        "a-1-cp311-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        "a-1-cp311-abi3-manylinux_2_34_aarch64.whl",
        "a-1-cp311-cp311-manylinux_2_28_aarch64.whl",
    ]
    for taken in range(1, len(names) + 1):
        wheels = [{"url": f"file:///x/{name}"} for name in names[:taken]]
        assert lock_packages.best(wheels[::-1]) == wheels[-1]


def test_members_are_counted_where_they_are_put() -> None:
    paths = {
        "a": [wheel_contents.placed(m) for m in ("a-1.data/purelib/x.py", "a-1.data/scripts/run")],
        "b": [wheel_contents.placed(m) for m in ("x.py", "run", "b-1.data/data/share/b")],
    }
    assert paths["a"] == ["x.py", "../bin/run"]
    assert wheel_contents.twice(paths) == [{"path": "x.py", "owners": ["a", "b"]}]


def test_what_wheels_hold_is_read_from_their_ends(tmp_path: Path) -> None:
    """Over HTTP ranges: little of a wheel is asked for, and what is told is what is in it."""
    file = tmp_path / "big-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("big/weights.bin", os.urandom(4 << 20))
        archive.writestr("big-1.data/scripts/run", "#!python\n")
        archive.writestr("big-1.dist-info/METADATA", "Name: big\nRequires-Dist: six>=1\n\nText\n")
    lock = [{"name": "big", "file": file.name, "size": file.stat().st_size}]
    with ranges(file) as (address, asked):
        found = wheel_contents.of(lock, {file.name: address}, roots=["Big"])
    assert found == {"requires": {"big": ["six>=1"]}, "files": 3, "twice": []}
    assert sum(asked) < 300_000


@contextmanager
def ranges(file: Path) -> Iterator[tuple[str, list[int]]]:
    """A server that gives ranges of a file, and the sizes of those that were asked for."""
    asked: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            data = file.read_bytes()[int(first) : int(last) + 1]
            asked.append(len(data))
            self.send_response(206)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{file.name}", asked
        server.shutdown()
