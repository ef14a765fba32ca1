"""Bundles: the commands of the probes really run, what they print is judged, nothing old counts."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import bundles
from bundles import healthy, site
from dsv41.doctor import PROBES, collect, commands, judge, read
from dsv41.errors import Unreachable, UsageError
from dsv41.fleet import Fleet, Node

TRIANGLE = site("triangle")
Run = Callable[[Node, str], tuple[int, str, str]]


def shell(command: str) -> tuple[int, str, str]:
    argv = ["sh", "-c", command]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout, done.stderr


def at(tmp: Path) -> Fleet:
    """The fleet with every folder of its first node below `tmp`."""
    node = replace(TRIANGLE.fleet.nodes[0], model_dir=f"{tmp}/model", rows_dir=f"{tmp}/no/rows")
    return replace(
        TRIANGLE.fleet,
        nodes=(node, *TRIANGLE.fleet.nodes[1:]),
        state_dir=str(tmp),
        api_key_file=f"{tmp}/it's a key",
    )


def checkpoint(tmp: Path) -> None:
    model = tmp / "model"
    (model / "encoding").mkdir(parents=True)
    (model / "a b.json").write_text("12345")
    (model / "encoding" / "encoding.py").write_text("")
    (model / "x.incomplete").write_text("1")
    (model / "inside").symlink_to("a b.json")
    (model / "nowhere").symlink_to("/does/not/exist")
    (tmp / "blob").write_text("123")
    (model / "outside").symlink_to("../blob")
    shards = {f"layers.{n}.w": f"model-0000{n % 2 + 1}-of-00002.safetensors" for n in range(4)}
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    for dump in (json.dumps(index), json.dumps(index, indent=2)):
        (model / "model.safetensors.index.json").write_text(dump)
        status, said, _ = shell(commands(at(tmp), 0)["checkpoint-index"])
        assert status == 0
        assert said.split() == [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ]


def test_the_listing_of_a_real_folder(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    status, said, _ = shell(commands(at(tmp_path), 0)["checkpoint"])
    rows = {
        name: (size, kind) for name, size, kind in (line.split("\t") for line in said.splitlines())
    }
    assert status == 0
    del rows["model.safetensors.index.json"]
    assert rows == {
        "a b.json": ("5", "file"),
        "encoding/encoding.py": ("0", "file"),
        "x.incomplete": ("1", "incomplete"),
        "inside": ("5", "file"),
        "nowhere": ("0", "broken-link"),
        "outside": ("3", "link"),
    }
    assert shell(commands(at(tmp_path), 0)["rows"]) == (0, "", "")  # not packed yet


def test_the_other_commands_on_this_machine(tmp_path: Path) -> None:
    asked = commands(at(tmp_path), 0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.log").write_text("The server is fired up\n")
    assert shell(asked["engine-log"])[1] == "The server is fired up\n"
    key = tmp_path / "it's a key"
    key.write_text("one\n\n  \ntwo")
    key.chmod(0o640)
    assert shell(asked["key-file"])[1] == "640\t2\n"
    status, said, _ = shell(asked["disk"])
    assert status == 0
    assert len(said.splitlines()) == 3
    for probe in ("uname", "meminfo", "cmdline", "swaps"):
        assert shell(asked[probe])[0] == 0
    key.unlink()
    assert shell(asked["key-file"])[0] != 0


def test_the_tree_of_ports_with_a_hole_that_cannot_be_read(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    for name, value in (
        ("state", "4: ACTIVE"),
        ("gids/0", "fe80::1"),
        ("gid_attrs/types/0", "RoCE v2"),
    ):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(value + "\n")
    (port / "gids" / "1").mkdir()  # reading it fails, as reading a hole does
    command = commands(at(tmp_path), 0)["infiniband"].replace(
        "/sys/class/infiniband", str(tmp_path)
    )
    status, said, errors = shell(command)
    assert (status, errors) == (0, "")
    assert "mlx5_0/ports/1/state\t4: ACTIVE\n" in said
    assert "mlx5_0/ports/1/gids/1\t\n" in said
    gone = shell(command.replace(str(tmp_path), str(tmp_path / "none")))
    assert gone[0] == 1


def test_every_command_is_shell(tmp_path: Path) -> None:
    plain = at(tmp_path)
    nodes = tuple(replace(n, nccl_library="/opt/nccl/libnccl.so.2") for n in plain.nodes)
    asked = commands(replace(plain, nodes=nodes), 0)
    named = {probe.name for probe in PROBES if probe.command}
    assert asked.keys() == named
    for command in asked.values():
        assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
    assert "key-file" not in commands(at(tmp_path), 1)
    assert "nccl-library" not in commands(at(tmp_path), 0)
    assert "10.0.22.2 10.0.23.3" in asked["neighbors"]


def test_sudo_where_the_node_has_it(tmp_path: Path) -> None:
    plain = at(tmp_path)
    with_sudo = replace(plain, nodes=tuple(replace(n, sudo=True) for n in plain.nodes))
    asked = commands(with_sudo, 0)
    assert asked["lspci"] == "sudo -n sh -c 'lspci -vv'"
    assert asked["uname"] == "uname -srm"
    assert {n for n, c in asked.items() if c.startswith("sudo")} <= {
        p.name for p in PROBES if p.root
    }


def runner(texts: dict[str, dict[str, str]], dead: frozenset[str] = frozenset()) -> Run:
    """Machines that answer each probe with its text of the healthy fleet."""

    def run(node: Node, command: str) -> tuple[int, str, str]:
        if node.name in dead:
            raise Unreachable("D011", f"{node.ssh} does not answer.")
        rank = [n.name for n in TRIANGLE.fleet.nodes].index(node.name)
        asked = commands(TRIANGLE.fleet, rank)
        probe = next(name for name, wanted in asked.items() if wanted == command)
        text = texts[node.name].get(probe)
        return (0, text, "") if text is not None else (127, "", f"{probe}: not found")

    return run


def test_collect_and_judge(tmp_path: Path) -> None:
    texts = healthy(TRIANGLE)
    del texts["spark2"]["lspci"]
    collect(runner(texts), TRIANGLE.fleet, tmp_path)
    assert (tmp_path / "spark1" / "meminfo.txt").read_text() == bundles.MEMINFO
    assert (tmp_path / "spark2" / "lspci.err").read_text() == "exit status 127: lspci: not found\n"
    report = judge(read(tmp_path, TRIANGLE.fleet), TRIANGLE.fleet, TRIANGLE.expect)
    unknown = [f for f in report.findings if f.level == "unknown"]
    assert [(f.code, f.node) for f in unknown] == [("D242", "spark2")]
    assert "lspci: not found" in unknown[0].says


def test_a_node_that_does_not_answer(tmp_path: Path) -> None:
    collect(runner(healthy(TRIANGLE)), TRIANGLE.fleet, tmp_path)
    collect(runner(healthy(TRIANGLE), frozenset({"spark3"})), TRIANGLE.fleet, tmp_path)
    assert not list((tmp_path / "spark3").glob("*.txt"))  # what was captured before is no evidence
    report = judge(read(tmp_path, TRIANGLE.fleet), TRIANGLE.fleet, TRIANGLE.expect)
    assert {f.level for f in report.of(2)} == {"unknown"} | {"info"} & {
        f.level for f in report.of(2)
    }
    assert "does not answer" in report.findings[0].says
    collect(runner(healthy(TRIANGLE)), TRIANGLE.fleet, tmp_path)
    assert not list((tmp_path / "spark3").glob("*.err"))


def test_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError) as caught:
            read(folder, TRIANGLE.fleet)
        assert caught.value.code == "D200"
        assert "--collect" in caught.value.fix


def test_strangers_and_odd_files(tmp_path: Path) -> None:
    collect(runner(healthy(TRIANGLE)), TRIANGLE.fleet, tmp_path)
    (tmp_path / "spark9").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    meminfo = tmp_path / "spark1" / "meminfo.txt"
    meminfo.unlink()
    meminfo.mkdir()
    (tmp_path / "spark2" / "uname.txt").write_bytes(b"\xff\xfe Linux")
    report = judge(read(tmp_path, TRIANGLE.fleet), TRIANGLE.fleet, TRIANGLE.expect)
    assert [f.says for f in report.findings if f.code == "D202"] == [
        "spark9 is no node of this fleet."
    ]
    assert any(f.code == "D210" and "directory" in f.says for f in report.findings)
    assert {f.level for f in report.of(1) if f.code == "D223"} == {"unknown"}


def test_a_node_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    node = replace(TRIANGLE.fleet.nodes[0], name="../outside")
    with pytest.raises(UsageError, match="D200"):
        collect(runner({}), replace(TRIANGLE.fleet, nodes=(node,)), tmp_path / "bundle")
    assert not list(tmp_path.iterdir())
