"""Every byte of a checkpoint against what was published, each fault by the name of its file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import hub_server
from dsv41.cli import main
from dsv41.errors import CheckFailed, Unreachable, UsageError
from dsv41.fleet import Fleet, Node
from dsv41.host.reach import Host
from dsv41.weights import check, nodes, published, sources
from dsv41.weights.published import File, Published
from dsv41.weights.receipt import Receipt

ONE, TWO = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
REVISION = hub_server.REVISION


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hub_server.checkpoint(tmp_path / "DeepSeek-V4.1-Flash")


@pytest.fixture
def listed(folder: Path) -> Published:
    return published.from_tree(hub_server.Hub(folder=folder).entries(), revision=REVISION)


def verify(folder: Path, listed: Published, *, again: bool = False) -> check.Verified:
    return check.verify(folder, listed, receipt=Receipt.of(folder), again=again)


def silent(_done: int, _total: int) -> None:
    pass


def statuses(result: check.Verified) -> dict[str, str]:
    return {file.path: file.status for file in result.files if file.status != "ok"}


def test_a_whole_checkpoint_is_read_once(folder: Path, listed: Published) -> None:
    first, second = verify(folder, listed), verify(folder, listed)
    assert (first.status, first.known, first.read_bytes) == ("ok", 0, listed.bytes)
    assert (second.status, second.known, second.read_bytes) == ("ok", 5, 0)
    assert verify(folder, listed, again=True).read_bytes == listed.bytes


def test_git_says_the_same_of_small_files(folder: Path, listed: Published) -> None:
    said = subprocess.run(
        ["git", "hash-object", "--no-filters", str(folder / "config.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {f.path: f.digest for f in listed.files}["config.json"] == said.stdout.strip()


def test_each_fault_has_its_file_and_name(folder: Path, listed: Published) -> None:
    (folder / "config.json").unlink()
    os.truncate(folder / ONE, 100)
    with (folder / TWO).open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"\xff")
    (folder / "encoding" / "encoding.py").unlink()
    (folder / "encoding" / "encoding.py").symlink_to("../blobs/gone")
    with (folder / "model.safetensors.index.json").open("a") as text:
        text.write(" ")
    assert statuses(verify(folder, listed)) == {
        "config.json": "missing",
        ONE: "short",
        TWO: "differs",
        "encoding/encoding.py": "broken-link",
        "model.safetensors.index.json": "long",
    }


def test_a_download_that_was_broken_off_is_named(folder: Path, listed: Published) -> None:
    (folder / ONE).unlink()
    digest = next(file.digest for file in listed.files if file.path == ONE)
    rest = folder / published.RECORDS / f"Ab3_.{digest}.incomplete"
    rest.parent.mkdir(parents=True)
    rest.write_bytes(b"x" * 1000)
    result = verify(folder, listed)
    assert statuses(result) == {ONE: "incomplete"}
    assert result.left == (rest.relative_to(folder).as_posix(),)


def test_a_touched_file_is_read_again(folder: Path, listed: Published) -> None:
    verify(folder, listed)
    data = bytearray((folder / ONE).read_bytes())
    data[7] ^= 1
    (folder / ONE).write_bytes(data)
    result = verify(folder, listed)
    assert (statuses(result), result.known) == ({ONE: "differs"}, 4)
    # the receipt keeps what was read, good or bad
    assert (statuses(verify(folder, listed)), verify(folder, listed).known) == ({ONE: "differs"}, 5)


def test_another_inode_of_the_same_size_and_time_is_read(folder: Path, listed: Published) -> None:
    verify(folder, listed)
    stat = (folder / ONE).stat()
    twin = folder / "twin"
    twin.write_bytes(b"\0" * stat.st_size)
    os.utime(twin, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    twin.replace(folder / ONE)
    assert statuses(verify(folder, listed)) == {ONE: "differs"}


def test_a_reading_that_was_broken_off_goes_on(folder: Path, listed: Published) -> None:
    def stop(done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    first = Published(revision=REVISION, source="hub", files=listed.files[:2])
    verify(folder, first)
    with pytest.raises(KeyboardInterrupt):
        check.verify(folder, listed, receipt=Receipt.of(folder), workers=1, progress=stop)
    result = verify(folder, listed)
    assert result.status == "ok"
    assert result.known >= 2


def test_a_damaged_receipt_counts_for_nothing(folder: Path, listed: Published) -> None:
    verify(folder, listed)
    place = Receipt.of(folder).place
    assert place
    place.write_text(place.read_text()[:-40])
    assert verify(folder, listed).known == 0


def test_the_page_cache_stays_small(tmp_path: Path) -> None:
    size = 48 << 20
    with (tmp_path / "a.bin").open("wb") as data:
        data.write(os.urandom(1 << 20) * 48)
        os.fsync(data.fileno())
    digest = hashlib.sha256((tmp_path / "a.bin").read_bytes()).hexdigest()
    file = File(path="a.bin", size=size, kind=published.SHA256, digest=digest)

    def resident() -> int:
        said = subprocess.run(
            ["fincore", "--bytes", "--noheadings", "--output=RES", str(tmp_path / "a.bin")],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(said.stdout.split()[0])

    assert resident() > size // 2
    only = Published(revision="", source="hub", files=(file,))
    assert check.verify(tmp_path, only, receipt=Receipt(None)).status == "ok"
    assert resident() < size // 10


def test_the_hub_is_asked_once(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with hub_server.serving(folder, page=2) as hub:
        found = sources.find(folder, REVISION, hub=hub.url, say=said.append)
        assert len(found.files) == 5
        asked = len(hub.asked)
        assert asked == 3  # pages of two
        sources.find(folder, REVISION, hub=hub.url, say=said.append)
        assert len(hub.asked) == asked
        with pytest.raises(CheckFailed, match="D453"):
            published.ask("0" * 40, hub=hub.url)
    with pytest.raises(Unreachable, match="D452"):
        published.ask(REVISION, hub="http://127.0.0.1:9")
    assert not said
    with pytest.raises(CheckFailed, match="D451"):
        published.read(folder / published.FOLDER / published.name_of(REVISION), revision="1" * 40)
    assert tmp_path.exists()


def test_offline_the_download_records_are_taken(folder: Path, listed: Published) -> None:
    records = folder / published.RECORDS
    for file in listed.files[:3]:
        place = records / f"{file.path}.metadata"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{REVISION}\n{file.digest}\n1790000000.5\n")
    (folder / TWO).unlink()
    found = sources.find(folder, REVISION, hub=None, say=print)
    result = verify(folder, found)
    assert found.source == "download records"
    assert result.status == "fail"
    assert statuses(result) == {TWO: "missing", "model.safetensors.index.json": "unknown"}
    with pytest.raises(CheckFailed, match="D451"):
        sources.find(folder, "1" * 40, hub=None, say=print)


def test_a_fixture_has_a_list_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in checkpoint.iterdir())
    found = sources.find(checkpoint, None, say=print)
    assert check.verify(checkpoint, found, receipt=Receipt(None)).status == "ok"
    assert sorted(path.name for path in checkpoint.iterdir()) == before
    with pytest.raises(UsageError, match="D450"):
        sources.find(tmp_path, None, say=print)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ""])
def test_a_list_cannot_lead_out_of_the_folder(path: str) -> None:
    entry = {"type": "file", "path": path, "size": 1, "oid": "0" * 40}
    with pytest.raises(CheckFailed, match="D451"):
        published.from_tree([entry], revision=REVISION)


def test_a_node_is_asked_by_the_zipped_program(folder: Path, tmp_path: Path) -> None:
    host = Host(name="spark1", destination="local")
    asked = nodes.Asked(
        folder=str(folder),
        state_dir=str(tmp_path / "state"),
        revision=REVISION,
        published=published.from_tree(hub_server.Hub(folder=folder).entries(), revision=REVISION)
        .to_json()
        .encode(),
    )
    told: list[tuple[int, ...]] = []
    first = nodes.verify(host, asked, progress=lambda *sums: told.append(sums))
    began = time.monotonic()
    second = nodes.verify(host, asked, progress=silent)
    assert (first["status"], first["known"], second["known"]) == ("ok", 0, 5)
    assert told[-1][0] == told[-1][1]
    assert time.monotonic() - began < 2
    gone = nodes.Asked(folder="/nowhere", state_dir=asked.state_dir, revision=REVISION)
    with pytest.raises(CheckFailed, match="D450 spark1: There is no folder"):
        nodes.verify(host, gone, progress=silent)


def fleet(nfs_server: str | None = None) -> Fleet:
    made = [
        Node(name=f"s{n}", ssh="local", address=f"10.0.0.{n}", model_dir="/m", rows_dir="/r")
        for n in (1, 2, 3)
    ]
    return Fleet(topology="switch", nodes=tuple(made), nfs_server=nfs_server)


def test_the_node_that_exports_holds_the_weights() -> None:
    assert nodes.holders(fleet()) == (0, 1, 2)
    assert nodes.holders(fleet(), "s2") == (1,)
    assert nodes.holders(fleet(nfs_server="10.0.0.2")) == (1,)
    with pytest.raises(UsageError, match="D450"):
        nodes.holders(fleet(nfs_server="10.0.0.2"), "s1")


def test_the_command_shows_every_bad_file(
    folder: Path, listed: Published, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder.parent / "list.json"
    place.write_text(listed.to_json())
    (folder / ONE).unlink()
    words = ["weights", "verify", "--dir", str(folder), "--revision", REVISION]
    assert main([*words, "--published", str(place)]) == 1
    out = capsys.readouterr().out
    assert f"BAD  {ONE}  missing" in out
    assert main([*words, "--published", str(place), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dsv41.weights/1"
    assert document["status"] == "fail"
