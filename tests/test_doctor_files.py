"""What is wrong with weights, rows, disks, images and the key file is found on its node."""

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bundles
from bundles import DIGEST, SHARDS, bundle, healthy, site
from dsv41.doctor import Report, judge
from dsv41.finding import Finding

TRIANGLE, RING = site("triangle"), site("ring")
Texts = dict[str, dict[str, str]]


def look(texts: Texts, place: bundles.Site = TRIANGLE) -> Report:
    return judge(bundle(texts), place.fleet, place.expect)


def edited(
    probe: str, old: str, new: str, node: str = "spark2", place: bundles.Site = TRIANGLE
) -> Texts:
    texts = healthy(place)
    assert old in texts[node][probe]
    texts[node][probe] = texts[node][probe].replace(old, new)
    return texts


def on(report: Report, code: str, rank: int | None = 1) -> Finding:
    """The worst finding of a code on a node, or on the fleet."""
    return next(f for f in report.findings if f.code == code and f.rank == rank)


SHARD = f"{SHARDS[16]}\t10631000000\tfile"


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        (SHARD + "\n", "", "D250", f"1 of 50 files are missing: {SHARDS[16]}"),
        ("config.json\t4321\tfile\n", "", "D250", "missing: config.json"),
        (
            "model.safetensors.index.json\t9876543\tfile\n",
            "",
            "D250",
            "model.safetensors.index.json",
        ),
        (SHARD, f"{SHARDS[16]}\t0\tfile", "D250", f"Empty files: {SHARDS[16]}"),
        (SHARD, f"{SHARDS[16]}\t0\tbroken-link", "D251", "lead nowhere"),
        (SHARD, f"{SHARDS[16]}\t10631000000\tlink", "D251", "does not see"),
        (SHARD, SHARD + "\nblobs/ab12.incomplete\t77\tincomplete", "D251", "ab12.incomplete"),
    ],
)
def test_the_checkpoint(old: str, new: str, code: str, words: str) -> None:
    report = look(edited("checkpoint", old, new))
    assert on(report, code).level == "fail"
    assert words in on(report, code).says
    assert on(report, code).fix
    assert code in {finding.code for finding in report.blocking()}


def test_links_that_leave_the_folder_get_the_copy_of_hard_links() -> None:
    report = look(edited("checkpoint", SHARD, SHARD.replace("\tfile", "\tlink")))
    assert on(report, "D251").fix.startswith("cp -rlL /models/DeepSeek-V4.1-Flash ")


def test_extra_files_are_told_and_no_more() -> None:
    texts = edited("checkpoint", SHARD, SHARD + "\nnotes.txt\t7\tfile\nold\t1\tbroken-link")
    assert on(look(texts), "D251").level == "info"
    assert "4 more files" in on(look(texts), "D251").says


def test_checkpoints_that_differ() -> None:
    texts = edited("checkpoint", "encoding/encoding.py\t31337", "encoding/encoding.py\t30001")
    assert (
        "spark1 and spark2 have different checkpoints: encoding/encoding.py"
        in on(look(texts), "D252").says
    )
    assert on(look(texts), "D252").level == "fail"


def test_revisions() -> None:
    report = look(edited("revision", "fb2764a5", "dba1be0a"))
    assert on(report, "D258", None).level == "fail"
    assert "spark1 fb2764a5cf32, spark2 dba1be0acf32" in on(report, "D258", None).says
    expect = replace(TRIANGLE.expect, revision="dba1be0a40aa45a94ad051997016db3960a90277")
    other = look(healthy(TRIANGLE), replace(TRIANGLE, expect=expect))
    assert on(other, "D258", None).level == "info"


def test_rows_that_are_not_packed() -> None:
    report = look(edited("rows", "engram-l14-r1of3-weighted", "engram-l14-r1of4-strided"))
    finding = on(report, "D253")
    assert finding.level == "fail"
    assert "engram-l14-r1of3-weighted.rows; there are engram-l1-r1of3-weighted" in finding.says
    assert finding.fix.startswith("on spark2, about 10 min: python3 -c ")
    assert "shard=Shard(rank=1, tp=3)" in finding.fix
    assert on(report, "D254").level == "info"


def test_rows_of_another_rank_are_not_this_ranks() -> None:
    texts = healthy(TRIANGLE)
    texts["spark2"]["rows"] = texts["spark3"]["rows"]
    assert on(look(texts), "D253").level == "fail"


@pytest.mark.parametrize(
    ("new", "level"),
    [
        ("0\tfile", "fail"),
        ("77\tincomplete", "fail"),
        ("5\tbroken-link", "fail"),
        ("4096\tfile", "info"),
    ],
)
def test_rows_that_cannot_be_read(new: str, level: str) -> None:
    texts = healthy(TRIANGLE)
    first, second = texts["spark2"]["rows"].splitlines()
    texts["spark2"]["rows"] = f"{first.split(chr(9))[0]}\t{new}\n{second}\n"
    report = look(texts)
    assert on(report, "D253").level == level


def test_row_file_sizes_are_those_of_the_format() -> None:
    """Four ranks: about 23.6 GiB a layer in 264-byte rows, 15 to a page of 4,096 bytes."""
    sizes = [int(line.split("\t")[1]) for line in bundles.rows(site("switch"), 0).splitlines()]
    assert all(size % 4096 == 0 for size in sizes)
    assert 47 < sum(sizes) / bundles.GIB < 50


DF = "/dev/nvme0n1p2 ext4 3838880071680 2838880071680 /\n"


@pytest.mark.parametrize(
    ("free", "level"), [(2_838_880_071_680, "ok"), (9_999_999_999, "warn"), (10_000_000_000, "ok")]
)
def test_free_space(free: int, level: str) -> None:
    assert on(look(edited("disk", "2838880071680", str(free))), "D255").level == level


def test_room_for_what_is_still_to_be_written() -> None:
    texts = edited("disk", "2838880071680", "60000000000")
    texts["spark2"]["rows"] = ""
    assert "65.1 GiB of rows and weights are still to be written" in on(look(texts), "D255").says
    texts = edited("checkpoint", SHARD + "\n", "")
    texts["spark2"]["disk"] = DF.replace("2838880071680", "9000000000")
    assert on(look(texts), "D255").level == "fail"


@pytest.mark.parametrize(
    ("rows", "model", "level"),
    [
        ("ext4", "ext4", "ok"),
        ("xfs", "nfs4", "ok"),
        ("nfs4", "nfs4", "fail"),
        ("tmpfs", "ext4", "fail"),
        ("ext4", "tmpfs", "fail"),
        ("btrfs", "ext4", "warn"),
        ("zfs", "ext4", "warn"),
    ],
)
def test_file_systems(rows: str, model: str, level: str) -> None:
    texts = healthy(TRIANGLE)
    size = "3838880071680 2838880071680"
    texts["spark2"]["disk"] = f"a {model} {size} /models\nb {rows} {size} /var/lib/dsv41\n"
    assert on(look(texts), "D256").level == level


def mount(texts: Texts, node: str, source: str) -> Texts:
    size = "3838880071680 2838880071680"
    texts[node]["disk"] = f"{source} nfs4 {size} /models\n{DF}"
    return texts


def test_mounts_of_one_export_are_fine() -> None:
    texts = mount(mount(healthy(TRIANGLE), "spark2", "10.0.22.1:/"), "spark3", "10.0.23.1:/")
    assert on(look(texts), "D257", None).says == "2 nodes mount the export /."


def test_mounts_of_different_exports() -> None:
    """Two export layouts, by the state of a running exporter (P35)."""
    texts = mount(
        mount(healthy(TRIANGLE), "spark2", "10.0.22.1:/"), "spark3", "10.0.23.1:/dsv41-native"
    )
    finding = on(look(texts), "D257", None)
    assert finding.level == "fail"
    assert "spark2 10.0.22.1:/, spark3 10.0.23.1:/dsv41-native" in finding.says


def test_the_opposite_node_of_a_ring_cannot_mount_over_the_fabric() -> None:
    """Rank 2 has no cable to rank 0 (P44); its neighbors and the management network are fine."""
    texts = mount(healthy(RING), "spark3", "10.0.50.10:/")
    assert "has no cable" in on(look(texts, RING), "D257", 2).says
    for node, source in (("spark2", "10.0.50.10:/"), ("spark3", "10.0.0.1:/"), ("spark3", "nas:/")):
        report = look(mount(healthy(RING), node, source), RING)
        assert not [f for f in report.findings if f.code == "D257" and f.level == "fail"]


OTHER = "sha256:" + "e0" * 32


def test_the_image_of_the_profile() -> None:
    report = look(edited("image", DIGEST, OTHER))
    finding = on(report, "D260")
    assert finding.level == "fail"
    assert "there is sha256:e0e0e0e0e0e0" in finding.says
    assert finding.fix == f"sudo podman pull registry.example/dsv41-sglang@{DIGEST}"
    assert on(report, "D261", None).level == "fail"
    assert "spark1 5a5a5a5a5a5a, spark2 e0e0e0e0e0e0" in on(report, "D261", None).says


def test_no_image_at_all() -> None:
    texts = healthy(TRIANGLE)
    texts["spark2"]["image"] = ""
    assert on(look(texts), "D260").level == "fail"
    bare = replace(TRIANGLE, expect=replace(TRIANGLE.expect, image_digest=None))
    assert on(look(texts, bare), "D260").level == "fail"
    assert on(look(healthy(TRIANGLE), bare), "D260").level == "info"


@pytest.mark.parametrize(
    "line", ["sglang {}", "host:5000/a/sglang:1\t{}", "sglang@{}", '["sglang:1@{}"]', "{}"]
)
def test_mixed_builds_are_found_in_any_form(line: str) -> None:
    unknown = replace(TRIANGLE, expect=replace(TRIANGLE.expect, image=None, image_digest=None))
    texts = healthy(TRIANGLE)
    for node in texts.values():
        node["image"] = line.format(DIGEST)
    assert on(look(texts, unknown), "D261", None).level == "ok"
    texts["spark3"]["image"] = line.format(OTHER)
    assert on(look(texts, unknown), "D261", None).level == "fail"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("600\t2\n", "ok"),
        ("0400 1", "ok"),
        ("mode 0600, 1 line", "ok"),
        ("-rw------- 3", "ok"),
        ("100600 1", "ok"),
        ("644\t2", "fail"),
        ("640\t2", "fail"),
        ("-rw-r--r-- 3", "fail"),
        ("600\t0", "fail"),
        ("", "unknown"),
        ("600", "unknown"),
    ],
)
def test_the_key_file(text: str, level: str) -> None:
    texts = healthy(TRIANGLE)
    texts["spark1"]["key-file"] = text
    assert on(look(texts), "D262", 0).level == level


def test_no_key_file_is_told() -> None:
    texts = healthy(TRIANGLE)
    del texts["spark1"]["key-file"]
    assert on(look(texts), "D262", 0).level == "unknown"
    place = replace(TRIANGLE, fleet=replace(TRIANGLE.fleet, api_key_file=None))
    assert on(look(texts, place), "D262", 0).level == "info"


def test_the_command_that_packs_is_one_that_runs(tmp_path: Path) -> None:
    """Run as it is printed, it comes as far as the checkpoint that is not there."""
    texts = healthy(TRIANGLE)
    texts["spark1"]["rows"] = ""
    node = replace(TRIANGLE.fleet.nodes[0], model_dir=f"{tmp_path}/it's a model")
    place = replace(
        TRIANGLE, fleet=replace(TRIANGLE.fleet, nodes=(node, *TRIANGLE.fleet.nodes[1:]))
    )
    fix = on(look(texts, place), "D253", 0).fix
    program, *arguments = shlex.split(fix.partition(": ")[2])
    assert program == "python3"
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert "CheckFailed: D028" in done.stderr
    assert f"{tmp_path}/it's a model/model.safetensors.index.json" in done.stderr
