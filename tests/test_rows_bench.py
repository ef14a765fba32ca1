"""`dsv41 rows bench`: real runs on a small file, goals judged from given runs, what is refused."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv41 import cli, host
from dsv41.errors import CheckFailed, Error
from dsv41.rows import bench
from dsv41.rows.bench import fio, goals, place, runs

MEMORY = {"lookups": 1, "page_cache_bytes": 0, "rss_bytes": 1 << 20}


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> Path:
        raise Error("D030", "g++ cannot be started.", fix="install it")

    monkeypatch.setattr(runs, "without_crc", refuse)


@pytest.mark.usefixtures("no_compiler")
def test_a_small_bench_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "LOOKUPS", 2000)
    words = ["--folder", str(tmp_path), "--span", "0.002", "--rounds", "1", "--seconds", "0.01"]
    status = cli.main(["rows", "bench", *words, "--force", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "dsv41.rows-bench/1"
    assert not list(tmp_path.iterdir())
    names = {(run["shape"], run["name"]) for run in report["runs"]}
    assert {("burst", "uring"), ("burst", "pread96"), ("chunk", "two-read")} <= names
    assert report["figures"]["burst two-read"]["reads_per_row"]["median"] == 2
    by = {goal["says"]: goal for goal in report["goals"]}
    assert by["burst: reads per unique row"]["found"] == 1
    assert by["chunk: rows/s to unchecked rows"]["met"] is None
    missed = [goal for goal in report["goals"] if goal["met"] is False]
    assert status == bool(missed)
    assert report["status"] == ("fail" if missed else "ok")


@pytest.mark.parametrize("wanted", [1, 3], ids=["while it writes", "while it measures"])
def test_a_term_leaves_no_file(tmp_path: Path, wanted: int) -> None:
    # the descriptors of the engines' stores say that the file is written
    words = ["--folder", str(tmp_path), "--span", "0.05", "--force"]
    command = [sys.executable, "-m", "dsv41", "rows", "bench", *words]
    bench = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    held = Path(f"/proc/{bench.pid}/fd")

    def opened() -> bool:
        count = 0
        for link in list(held.iterdir()):
            with contextlib.suppress(OSError):  # closed meanwhile
                count += tmp_path in link.readlink().parents
        return count >= wanted

    assert host.wait_until(opened, seconds=60, every=0.01), bench.poll()
    bench.send_signal(signal.SIGTERM)
    says = bench.communicate(timeout=60)[1]
    assert (bench.returncode, list(tmp_path.iterdir())) == (130, []), says
    assert "asked to stop" in says


def one(
    shape: str, name: str, *, rows: float, cpu: float = 2e-6, number: int = 1
) -> dict[str, Any]:
    return {
        "round": number,
        "shape": shape,
        "name": name,
        "rows": rows,
        "seconds": 1.0,
        "cpu_seconds": rows * cpu,
        "reads": rows,
        "unique": rows,
    }


def whole(**changed: float) -> list[dict[str, Any]]:
    """Runs of five rounds in which the disk gives more each round; some contender may differ."""
    found = []
    for number in range(1, 6):
        rates = {"uring": 90_000.0, "aio": 85_000.0, "pread96": 50_000.0, "fio": 95_000.0}
        rates |= {"two-read": 45_000.0, "unchecked": 90_000.0, "checked": 88_000.0} | changed
        for shape in ("burst", "chunk"):
            for name, rate in rates.items():
                cpu = 12e-6 if name == "pread96" else 2e-6
                found.append(one(shape, name, rows=rate * number, cpu=cpu, number=number))
        found += [
            one("chunk", f"unique {part}", rows=90_000 * number / part, number=number)
            for part in runs.FRACTIONS
        ]
    return found


def test_goals_are_judged_by_the_ratios_within_rounds() -> None:
    good = goals.judge(whole(), memory=MEMORY)
    assert all(goal["met"] for goal in good)
    assert {goal["name"] for goal in good} == {f"R{n}" for n in range(1, 10)}
    for changed, names in (
        ({"fio": 101_000.0}, {"R1", "R2"}),
        ({"pread96": 80_000.0}, {"R3"}),
        ({"two-read": 60_000.0}, {"R5"}),
        ({"checked": 70_000.0}, {"R7"}),
        ({"aio": 70_000.0}, {"R8"}),
    ):
        found = goals.judge(whole(**changed), memory=MEMORY)
        assert {goal["name"] for goal in found if not goal["met"]} == names
    found = goals.judge(whole(), memory=MEMORY | {"page_cache_bytes": 9 << 20})
    assert [goal["name"] for goal in found if not goal["met"]] == ["R9"]


def test_the_time_of_the_check_is_a_difference_within_rounds() -> None:
    runs_ = [run for run in whole() if run["name"] not in {"checked", "unchecked"}]
    for number, without, checked in ((1, 1.0, 1.1), (2, 5.0, 5.1), (3, 3.0, 3.9)):
        for shape in ("burst", "chunk"):  # by medians alone it would be 0.9
            for name, cpu in (("unchecked", without), ("checked", checked)):
                runs_.append(one(shape, name, rows=90_000, cpu=cpu * 1e-6, number=number))
    judged = goals.judge(runs_, memory=MEMORY)
    assert [goal["found"] for goal in judged if "of the check" in goal["says"]] == [0.1, 0.1]


def test_a_memory_file_system_and_a_small_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "system_of", lambda _: "tmpfs")
    with pytest.raises(CheckFailed, match="D470"):
        bench.run(bench.Options(folder=tmp_path), say=print)
    monkeypatch.undo()
    assert place.system_of(tmp_path) not in {"", "tmpfs"}
    small = tmp_path / "small.rows"
    small.write_bytes(b"0" * 4096)
    with pytest.raises(CheckFailed, match="D471"):
        bench.run(bench.Options(file=small), say=print)


def test_fio_must_be_there_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Error, match="D472"):
        fio.check_fio()
