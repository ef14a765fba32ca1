"""The checks of the public cycle's launcher, one by one: where each stands here, and its code."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dsv41 import fleet, plan, presence, profile
from dsv41.errors import Error
from planned import each_node, fleet_for, profile_with

CYCLE = profile.load("tp4-cycle")
CONFIG = json.dumps({"architectures": ["DeepseekV41ForCausalLM"]}).encode()
SHARDS = [f"model-{n:05d}-of-00048.safetensors" for n in range(1, 49)]
INDEX = json.dumps({"weight_map": {f"t{n}": name for n, name in enumerate(SHARDS)}}).encode()


def files(**without: Any) -> dict[str, bytes]:
    """A node's files by name below model_dir, and its NCCL."""
    found = {"config.json": CONFIG, presence.INDEX: INDEX, **dict.fromkeys(SHARDS, b"")}
    found["libnccl.so.2"] = b"\x7fELF ... SWITCHLESS_RING_ONLY ..."
    return {name: without.get(name, data) for name, data in found.items()}


def codes(found: dict[str, bytes | None], chosen: profile.Profile = CYCLE) -> list[str]:
    node = replace(fleet_for(CYCLE).nodes[0], nccl_library="/opt/libnccl.so.2")
    result = presence.on_node(chosen, node, lambda path: found.get(path.rsplit("/", 1)[1]))
    assert all(finding.level == "fail" and finding.fix for finding in result)
    return [finding.code for finding in result]


def test_a_whole_node() -> None:
    assert codes(dict(files())) == []


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("config.json", None, "D131"),
        ("config.json", b'{"architectures": ["DeepseekV4ForCausalLM"]}', "D131"),
        (SHARDS[-1], None, "D131"),
        (presence.INDEX, None, "D131"),
        (presence.INDEX, b"{}", "D131"),
        (presence.INDEX, b"not JSON", "D131"),
        (presence.INDEX, b"\xff", "D131"),
        ("libnccl.so.2", None, "D132"),
        ("libnccl.so.2", b"\x7fELF stock", "D132"),
    ],
)
def test_what_a_node_lacks(name: str, data: bytes | None, code: str) -> None:
    assert codes({**files(), name: data}) == [code]


def test_the_marker_is_asked_of_rings_alone() -> None:
    stock: dict[str, bytes | None] = {**files(), "libnccl.so.2": b"stock"}
    assert codes(stock, profile.load("tp4")) == []


# the launcher's checks in its own order; the code with which each one fails here


def refused(chosen: profile.Profile, where: fleet.Fleet) -> str:
    with pytest.raises(Error) as caught:
        plan.plan(chosen, where, {})
    return caught.value.code


@pytest.mark.parametrize(
    "change",
    [
        {"ssh": "<USER>@10.0.0.1"},
        {"model_dir": "/REPLACE_WITH_MODEL_PATH"},
        {"socket_ifname": "<IFNAME>"},
        {"fabric": ("10.0.40.1/24", "<ADDRESS>")},
    ],
)
def test_1_no_placeholder(change: dict[str, Any]) -> None:
    where = fleet_for(CYCLE)
    broken = replace(where.nodes[0], **change)
    assert refused(CYCLE, replace(where, nodes=(broken, *where.nodes[1:]))) == "D130"
    assert refused(CYCLE, replace(where, state_dir="/var/lib/<NAME>")) == "D130"


def text_with(old: str, new: str) -> str:
    from dsv41 import example  # noqa: PLC0415 - read beside its use

    text = example.fleet_text(CYCLE)
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "spark1"', 'name = ""'),
        ('socket_ifname = "enP7s7"', 'socket_ifname = ""'),
        ('model_dir = "/models/DeepSeek-V4.1-Flash"', "# model_dir"),
    ],
)
def test_2_no_name_is_empty(old: str, new: str) -> None:
    with pytest.raises(Error) as caught:
        fleet.parse(text_with(old, new), where="f")
    assert caught.value.code == "D101"


def test_3_ranks_are_nodes() -> None:
    where = fleet_for(CYCLE)
    assert refused(CYCLE, replace(where, nodes=where.nodes[:3])) == "D096"


def test_4_folders_are_absolute() -> None:
    assert refused(CYCLE, each_node(fleet_for(CYCLE), model_dir="models")) == "D105"


@pytest.mark.parametrize(
    "change",
    [
        {"context": 0},
        {"slots": -1},
        {"chunk": 0},
        {"row_threads": 0},
        {"mem_fraction": 1.5},
        {"draft_sample": "sampled"},
        {"eager": 1},
        {"thinking_default": "yes"},
    ],
)
def test_6_values_have_their_form(change: dict[str, Any]) -> None:
    with pytest.raises(Error) as caught:
        profile_with("tp4-cycle", **change)
    assert caught.value.code == "D095"


@pytest.mark.parametrize("port", ["api_port = 0", "api_port = 20000", "master_port = 70000"])
def test_6_ports_are_ports_and_differ(port: str) -> None:
    with pytest.raises(Error) as caught:
        fleet.parse(f"{port}\n" + text_with("topology", "topology"), where="f")
    assert caught.value.code in {"D101", "D102"}


def test_7_drafts_are_a_multiple_of_the_block() -> None:
    assert refused(profile_with("tp4-cycle", draft_window=7), fleet_for(CYCLE)) == "D104"
    assert plan.plan(profile_with("tp4-cycle", draft_window=10), fleet_for(CYCLE), {})


@pytest.mark.parametrize(
    "change",
    [
        {"nccl_subnet_prefix": 25},
        {"nccl_subnet_aware": False},
        {"nccl_merge_nics": True},
        {"nccl_cross_nic": 0},
        {"nccl_skip_tree": False},
        {"nccl_ring_only": False},
        {"nccl_cumem": True},
    ],
)
def test_8_the_fabric_contract(change: dict[str, Any]) -> None:
    assert refused(profile_with("tp4-cycle", **change), fleet_for(CYCLE)) == "D105"


@pytest.mark.parametrize("name", ["nccl_algo", "nccl_p2p_level"])
def test_8_nothing_of_the_contract_is_omitted(name: str) -> None:
    knobs = {**CYCLE.knobs, name: replace(CYCLE.knobs[name], value=None, omitted=True)}
    assert refused(replace(CYCLE, knobs=knobs), fleet_for(CYCLE)) == "D105"


def test_8_two_distinct_ports_and_one_interface() -> None:
    where = fleet_for(CYCLE)
    same = replace(where.nodes[1], hca=("a", "a"))
    with pytest.raises(Error) as caught:
        fleet.parse(text_with('hca = ["rocep1s0f0", "rocep1s0f1"]', 'hca = ["a", "a"]'), where="f")
    assert caught.value.code == "D102"
    assert same.hca == ("a", "a")
    for rank in plan.plan(CYCLE, where, {}).ranks:
        assert rank.env["NCCL_SOCKET_IFNAME"] == rank.env["GLOO_SOCKET_IFNAME"]
    head = plan.plan(CYCLE, where, {}).ranks[0]
    assert head.argv[head.argv.index("--master-addr") + 1] == head.env["VLLM_HOST_IP"]
