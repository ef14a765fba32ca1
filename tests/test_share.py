"""What `share` would do to a node, from what the node has."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dsv41 import share
from dsv41.errors import CheckFailed, Unsafe, UsageError
from dsv41.fleet import Fleet, Node
from dsv41.host.reach import Host
from dsv41.share import state as states
from dsv41.share import tables, texts

MODEL = "/models/DeepSeek-V4.1-Flash"
TOOLS = frozenset({"systemctl", "exportfs", "mount.nfs4"})
EXPORTER = states.Exporter(engine="docker", name="dsv41-nfs", inside="/export", exports="")


def fleet(*, server: str | None = "10.0.0.1", topology: str = "switch") -> Fleet:
    made = tuple(
        Node(
            name=f"spark{n}",
            ssh="local",
            address=f"10.0.0.{n}",
            hca=("rocep1s0f0",),
            fabric=(f"10.0.22.{n}/24",),
            model_dir=MODEL,
            rows_dir="/rows",
        )
        for n in (1, 2)
    )
    return Fleet(topology=topology, nodes=made, nfs_server=server)


def bare(node: str, **given: object) -> share.State:
    empty = share.State(
        node=node,
        uid=0,
        nixos=False,
        tools=TOOLS,
        exports="",
        other_roots=(),
        live=frozenset(),
        server=("inactive", "disabled"),
        mount="",
        automount="",
        automount_state=(),
        mounted=None,
        fstab=None,
        folder="empty",
        exporter=None,
    )
    return replace(empty, **given)  # type: ignore[arg-type]


def done(made: Fleet) -> dict[str, share.State]:
    """Both nodes as they are when all is in place."""
    return {
        "spark1": bare(
            "spark1",
            folder="full",
            exports=texts.exports(made, 0).strip(),
            live=frozenset(texts.clients(made, 0)),
            server=("active", "enabled"),
        ),
        "spark2": bare(
            "spark2",
            folder="mounted",
            mount=texts.mount_unit(made, 1, 0).strip(),
            automount=texts.automount_unit(made, 1).strip(),
            automount_state=("active", "enabled"),
            mounted=("10.0.0.1:/", "nfs4", "ro"),
        ),
    }


def plan(*, rewrite: bool = False, **given: share.State) -> list[str]:
    found = {**done(fleet()), **given}
    return [change.step.id for change in share.plan(fleet(), found, rewrite=rewrite)]


def test_everything_is_made_on_bare_nodes() -> None:
    made = plan(spark1=bare("spark1", folder="full"), spark2=bare("spark2", folder="absent"))
    assert made == [
        *("exports-spark1", "server-spark1", "export-spark1", "folder-spark2"),
        *("mount-spark2", "automount-spark2", "reload-spark2", "enable-spark2"),
    ]
    assert plan() == []


def test_only_what_differs_is_done() -> None:
    whole = done(fleet())
    stale = replace(whole["spark2"], mount="[Mount]\nWhat=10.0.0.9:/")
    assert plan(spark2=stale) == [
        *("unmount-spark2", "mount-spark2", "reload-spark2", "enable-spark2")
    ]
    assert plan(spark1=replace(whole["spark1"], live=frozenset())) == ["export-spark1"]
    asleep = replace(whole["spark1"], server=("inactive", "enabled"))
    assert plan(spark1=asleep) == ["server-spark1"]


def test_the_options_are_the_recipe_s_and_clients_are_the_fleet_s() -> None:
    options = "ro,sync,no_subtree_check,no_root_squash,insecure,fsid=0"
    line = f"{MODEL} 10.0.0.2({options}) 10.0.22.2({options})"
    assert texts.exports(fleet(), 0).splitlines()[1:] == [line]
    assert "What=10.0.0.1:/\n" in texts.mount_unit(fleet(), 1, 0)
    mount = "nfsvers=4.2,ro,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
    assert f"Options={mount}\n" in texts.mount_unit(fleet(), 1, 0)
    six = replace(fleet(), nfs_server="fd00::1")
    assert "What=[fd00::1]:/\n" in texts.mount_unit(six, 1, 0)


@pytest.mark.parametrize(
    ("node", "given", "code"),
    [
        ("spark1", {"nixos": True}, "D463"),
        ("spark2", {"nixos": True}, "D463"),
        ("spark2", {"uid": 1000}, "D464"),
        ("spark1", {"tools": frozenset({"systemctl"})}, "D464"),
        ("spark1", {"folder": "absent"}, "D464"),
        ("spark2", {"tools": frozenset({"systemctl"})}, "D464"),
        ("spark1", {"other_roots": ("/srv *(ro,fsid=0)",)}, "D465"),
        ("spark2", {"fstab": ("10.0.0.9:/", "nfs4", "ro")}, "D465"),
    ],
)
def test_what_is_in_the_way_is_refused(node: str, given: dict[str, object], code: str) -> None:
    with pytest.raises(CheckFailed, match=code):
        plan(**{node: replace(done(fleet())[node], **given)})  # type: ignore[arg-type]


def test_files_are_never_hidden() -> None:
    with pytest.raises(Unsafe, match="D466"):
        plan(spark2=bare("spark2", folder="full"))


def test_a_mount_by_hand_is_left() -> None:
    assert plan(spark2=bare("spark2", fstab=("10.0.0.1:/", "nfs", "ro"))) == []


def test_another_exporter_is_rewritten_only_when_told() -> None:
    old = replace(EXPORTER, exports="/export 10.9.0.0/16(ro,fsid=0)")
    server = bare("spark1", folder="full", exporter=old)
    with pytest.raises(Unsafe, match=r"exports: /export 10\.9.* would become: /export 10\.0\.0\.2"):
        plan(spark1=server)
    assert plan(spark1=server, rewrite=True) == ["rewrite-spark1"]
    line = texts.export_line("/export", texts.clients(fleet(), 0))
    assert plan(spark1=replace(server, exporter=replace(old, exports=line))) == []
    with pytest.raises(CheckFailed, match="D465"):
        plan(spark1=replace(server, exporter=replace(old, inside=None)))
    # the host's own server is preferred while it runs
    assert plan(spark1=replace(done(fleet())["spark1"], exporter=old)) == []


def test_own_copies_need_no_share_and_no_rest_of_one() -> None:
    own = fleet(server=None)
    assert share.plan(own, {}) == []
    left = share.leftovers(own, done(fleet()))
    assert left == [
        "spark1 has /etc/exports.d/dsv41.exports",
        f"spark2 mounts 10.0.0.1:/ on {MODEL}",
    ]
    assert not share.leftovers(own, {"spark1": bare("spark1"), "spark2": bare("spark2")})


def test_removal_unmounts_before_it_stops_exporting() -> None:
    ids = [change.step.id for change in share.removal(fleet(), done(fleet()))]
    assert ids == [
        *("disable-spark2", "remove-spark2", "reload-spark2"),
        *("remove-exports-spark1", "export-spark1"),
    ]
    assert share.removal(fleet(), {n: bare(n) for n in ("spark1", "spark2")}) == []


def test_a_server_is_a_node_that_all_reach() -> None:
    with pytest.raises(UsageError, match="D460"):
        texts.server_of(fleet(server="10.0.0.9"))
    assert texts.server_of(fleet(server="10.0.22.2")) == 1
    odd = replace(fleet().nodes[1], model_dir="/models/a b")
    with pytest.raises(UsageError, match="D461"):
        texts.server_of(replace(fleet(), nodes=(fleet().nodes[0], odd)))


@pytest.mark.parametrize("folder", [MODEL, "/a/.b/c_d", "/x+y@z", "/.hidden/q", "/é"])
def test_units_are_named_as_systemd_names_them(folder: str) -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("no systemd-escape on this machine")
    said = subprocess.run(
        ["systemd-escape", "--path", folder], capture_output=True, text=True, check=True
    )
    assert texts.unit_name(folder) == said.stdout.strip()


def test_the_units_are_ones(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    name = texts.unit_name(MODEL)
    (tmp_path / f"{name}.mount").write_text(texts.mount_unit(fleet(), 1, 0))
    (tmp_path / f"{name}.automount").write_text(texts.automount_unit(fleet(), 1))
    files = sorted(map(str, tmp_path.iterdir()))
    said = subprocess.run(
        ["systemd-analyze", "verify", *files], capture_output=True, text=True, check=False
    )
    assert name not in said.stderr, said.stderr


def test_a_node_is_read_by_one_script() -> None:
    node = replace(fleet().nodes[0], model_dir="/proc")
    found = states.read(Host(name="spark1", destination="local"), node)
    assert found.folder == "mounted"
    assert found.mounted is not None
    assert found.mounted[1] == "proc"


def test_what_an_exporter_container_says_is_read() -> None:
    text = states.script(fleet().nodes[0])
    assert "vllm-fn-nfs|glm53-nfs|dsv41-nfs)" in text
    said = "\n".join(
        f"\n@@dsv41 {name}\n{body}"
        for name, body in {
            "uid": "0",
            "os": 'NAME="x"\nID=nixos',
            **dict.fromkeys(("tools", "exports", "others", "server", "mount"), ""),
            **dict.fromkeys(("automount", "automount-state", "mounted", "fstab"), ""),
            "live": f"{MODEL}\t10.0.0.2(ro,sync)\n/srv\t10.0.0.3(rw)",
            "folder": "there\nconfig.json",
            "exporter": f"docker dsv41-nfs\n{MODEL} /export|/x /y|\n# old\n/export *(ro,fsid=0)",
            "end": "",
        }.items()
    )
    found = states.parse(said, fleet().nodes[0])
    assert found.exporter == replace(EXPORTER, exports="/export *(ro,fsid=0)")
    assert (found.nixos, found.folder) == (True, "full")
    assert set(found.live) == {"10.0.0.2"}


def test_tables_are_the_same_everywhere_or_nowhere(tmp_path: Path) -> None:
    table = tmp_path / "sts.json"
    table.write_text("{}")
    made = replace(fleet(), state_dir=str(tmp_path / "state"), sts_table=str(table))
    hosts = {"spark1": Host(name="spark1", destination="local")}
    assert tables.push(made, hosts)["spark1"] == {"sps_table": "absent", "sts_table": "put"}
    assert tables.push(made, hosts)["spark1"]["sts_table"] == "same"
    there = Path(tables.targets(made)["sts_table"])
    assert there.read_text() == "{}"
    assert tables.push(replace(made, sts_table=None), hosts)["spark1"]["sts_table"] == "removed"
    assert not there.exists()
    with pytest.raises(UsageError, match="D459"):
        tables.push(replace(made, sps_table="/nowhere.json"), hosts)
