"""What a rank looks at on its machine before a round: each thing that can be wrong, by its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import plan
from dsv41.budget import Item
from dsv41.errors import EngineFailed, Error, Unsafe
from dsv41.run import recheck, wire
from planned import planned, row_file


@pytest.fixture
def here(tmp_path: Path) -> plan.Plan:
    """A Plan whose rank 1 finds everything on this machine."""
    made = planned("tp3")
    for layer in (1, 14):
        row_file(tmp_path, layer=layer, rank=1, tp=3, partition="weighted")
    mounts = tuple(m.replace("/var/lib/dsv41/rows", str(tmp_path)) for m in made.ranks[1].mounts)
    return replace(made, ranks=tuple(replace(rank, mounts=mounts) for rank in made.ranks))


def look(whole: plan.Plan, plan_file: Path | None = None, *, rank: int = 1) -> None:
    for _, check in recheck.before_round(whole, whole.ranks[rank], plan_file=plan_file):
        check()


def refused(call: Callable[[], None]) -> Error:
    with pytest.raises(Error) as caught:
        call()
    assert caught.value.fix
    return caught.value


def test_a_machine_with_everything_passes(here: plan.Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(here.to_json())
    look(here, file)


def test_another_version_and_a_changed_plan(here: plan.Plan, tmp_path: Path) -> None:
    found = refused(lambda: look(replace(here, version="0.0.1")))
    assert (found.code, type(found)) == ("D421", Unsafe)
    assert "made by dsv41 0.0.1" in found.says
    file = tmp_path / "plan.json"
    file.write_text(replace(here, url="http://10.0.0.1:1/v1").to_json())
    found = refused(lambda: look(here, file))
    assert (found.code, type(found)) == ("D421", EngineFailed)
    assert here.digest in found.says


def test_a_table_of_other_bytes(here: plan.Plan, tmp_path: Path) -> None:
    table = tmp_path / "sps.json"
    table.write_text("{}")
    target = "/state/dspark_sps.json"
    rank = replace(here.ranks[1], mounts=(*here.ranks[1].mounts, f"{table}:{target}:ro"))
    whole = replace(here, ranks=(here.ranks[0], rank), tables={target: "sha256:0"})
    assert (
        "found sha256:44136fa355b3678a1146ad16f7e8649e94fb4f"
        in refused(lambda: recheck.tables(whole, rank)).says
    )
    table.unlink()
    assert "No such file" in refused(lambda: recheck.tables(whole, rank)).says


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.unlink(), "No such file or directory"),
        (lambda path: path.write_bytes(b""), "expected a row file of version 1"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "expected 8192 bytes, found 8191"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b"weig", b"xeig")),
            "its header page is damaged",
        ),
        (
            lambda path: row_file(
                path.parent, layer=14, rank=1, tp=3, partition="weighted", complete=0
            ),
            "it is not finished",
        ),
        (
            lambda path: path.write_bytes(
                row_file(path.parent, layer=14, rank=2, tp=3, partition="weighted").read_bytes()
            ),
            "expected layer, rank, ranks, partition 14, 1, 3, weighted, found 14, 2, 3, weighted",
        ),
    ],
)
def test_rows_that_are_not_this_ranks(
    here: plan.Plan, tmp_path: Path, change: Callable[[Path], object], says: str
) -> None:
    change(tmp_path / "engram-l14-r1of3-weighted.rows")
    found = refused(lambda: look(here))
    assert found.code == "D423"
    assert says in found.says
    assert found.fix.startswith("dsv41 pack --plan")


def test_keys_that_others_can_read(here: plan.Plan, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(mode=0o644)
    keys.chmod(0o644)
    whole = replace(here, api_key_file=str(keys))
    assert "mode 0644" in refused(lambda: recheck.keys(whole, whole.ranks[0])).says
    recheck.keys(whole, whole.ranks[1])  # a worker has none
    keys.chmod(0o600)
    recheck.keys(whole, whole.ranks[0])


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (None, 0o600, "There is no control key"),
        ("ab" * 32, 0o640, "has mode 0640"),
        ("ab" * 31, 0o600, "expected 64 hex digits, found 62"),
        ("zz" * 32, 0o600, "is no key"),
    ],
)
def test_a_control_key_that_is_none(tmp_path: Path, text: str | None, mode: int, says: str) -> None:
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(Unsafe) as caught:
        wire.read_key(path)
    found = caught.value
    assert found.fix
    assert found.code == "D420"
    assert says in found.says


def test_memory_against_the_ledger(here: plan.Plan) -> None:
    items = tuple(
        Item(item=name, bytes=size, why="")
        for name, size in (("system", 2**34), ("weights", 2**30), ("kv", 2**30))
    )
    rank = replace(here.ranks[1], ledger=items)
    assert recheck.needed(rank) == 2**31
    said: list[str] = []
    short = recheck.Memory(available=2**31 - 1, swap=0)
    assert refused(lambda: recheck.memory(rank, short, said.append)).code == "D425"
    recheck.memory(rank, recheck.Memory(available=2**31, swap=0), said.append)
    assert len(said) == 1
    assert said[0].startswith("swap is off and 0.0 GiB are left")
    recheck.memory(rank, recheck.Memory(available=2**31, swap=2**30), said.append)
    assert len(said) == 1
    assert recheck.memory_here().available > 2**20
