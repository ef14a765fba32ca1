"""Profile and fleet together: the ring's contract, ports, subnets, shares, advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsv41 import fleet, plan, profile
from dsv41.errors import UsageError
from planned import IMAGE, each_node, fleet_for, profile_with


def refused(chosen: profile.Profile, where: fleet.Fleet) -> UsageError:
    with pytest.raises(UsageError) as caught:
        plan.plan(chosen, where, {})
    assert caught.value.code == "D105"
    return caught.value


def test_a_ring_needs_the_patched_nccl() -> None:
    """Opposite nodes have no cable, and stock NCCL builds trees."""
    error = refused(profile.load("tp4"), fleet_for(profile.load("tp4-ring")))
    assert "no cable joins ranks 0 and 2" in error.says
    assert "tp4-ring or tp4-cycle" in error.fix


@pytest.mark.parametrize("name", ["tp4-ring", "tp4-cycle"])
def test_the_patched_nccl_is_for_rings_only(name: str) -> None:
    error = refused(profile.load(name), fleet_for(profile.load("tp4")))
    assert "knows rings only" in error.says


def test_a_ring_of_three_is_a_triangle_to_nccl() -> None:
    where = fleet_for(profile.load("tp3"), topology="ring")
    assert plan.plan(profile.load("tp3"), where, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nccl_ring_only": False}, "nccl_ring_only is False"),
        ({"nccl_subnet_aware": False}, "nccl_subnet_aware is False"),
        ({"nccl_merge_nics": True}, "nccl_merge_nics is True"),
    ],
)
def test_the_rings_contract(change: dict[str, Any], words: str) -> None:
    chosen = profile_with("tp4-ring", **change)
    assert words in refused(chosen, fleet_for(chosen)).says


def test_more_ports_than_are_published() -> None:
    chosen = profile.load("tp4")
    hca = ("rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1")
    where = fleet_for(chosen)
    nodes = tuple(
        replace(node, hca=hca, fabric=(*node.fabric, f"10.0.42.{rank + 1}/24"))
        for rank, node in enumerate(where.nodes)
    )
    where = replace(where, nodes=nodes)
    assert "publishes 2" in refused(chosen, where).says
    more = profile_with("tp4", nccl_extended_gids=True, nccl_preserve_pci_domain=True)
    assert plan.plan(more, where, {}).ranks[0].env["NCCL_IB_EXTENDED_IPV4_GIDS"] == "1"


def test_the_prefix_of_the_cables_is_the_profiles() -> None:
    chosen = profile.load("tp4")
    where = fleet_for(chosen)
    nodes = tuple(
        replace(node, fabric=tuple(a.replace("/24", "/28") for a in node.fabric))
        for node in where.nodes
    )
    assert "nccl_subnet_prefix is 24" in refused(chosen, replace(where, nodes=nodes)).says


@pytest.mark.parametrize(
    "change", [{"model_dir": "models"}, {"rows_dir": "/a:b"}, {"nccl_library": "lib.so"}]
)
def test_paths_are_absolute(change: dict[str, str]) -> None:
    chosen = profile.load("tp3")
    assert "not an absolute path" in refused(chosen, each_node(fleet_for(chosen), **change)).says


@pytest.mark.parametrize("change", [{"cache_dir": "cache"}, {"api_key_file": "keys"}])
def test_paths_of_the_fleet_are_absolute(change: dict[str, str]) -> None:
    chosen = profile.load("tp3")
    assert "of the fleet is" in refused(chosen, fleet_for(chosen, **change)).says


def test_a_share_on_a_cable_does_not_reach_the_opposite_node() -> None:
    chosen = profile.load("tp4-ring")
    error = refused(chosen, fleet_for(chosen, nfs_server="10.0.40.1"))
    assert "on a cable that spark3 does not have" in error.says
    assert plan.plan(chosen, fleet_for(chosen, nfs_server="10.0.0.1"), {})
    switch = profile.load("tp4")
    assert plan.plan(switch, fleet_for(switch, nfs_server="10.0.40.1"), {})


def test_loopback_is_for_profile_local() -> None:
    loopback = fleet.loopback(tp=3, state_dir="/s", port=1, master_port=2)
    assert "topology loopback" in refused(profile.load("tp3"), loopback).says


@pytest.mark.parametrize(("like", "tp"), [("tp3", 3), ("tp4", 4), ("tp4-ring", 4)])
def test_profile_local_on_nodes_runs_in_containers(like: str, tp: int) -> None:
    where = fleet_for(profile.load(like), api_key_file="/keys", container="docker")
    chosen = profile.load("local").with_values("--tp", tp=tp)
    made = plan.plan(chosen, where, {"local": IMAGE})
    head, *workers = made.ranks
    assert {(rank.container, rank.image) for rank in made.ranks} == {("docker", IMAGE)}
    assert len({rank.fingerprint for rank in made.ranks}) == 1
    assert head.env["GLOO_SOCKET_IFNAME"] == where.nodes[0].socket_ifname
    assert f"{where.nodes[0].address}:{where.master_port}" in workers[0].argv
    assert "/keys:/run/dsv41/api-key:ro" in head.mounts
    assert not any("api-key" in mount for rank in workers for mount in rank.mounts)
    verbs = [step.command[1:3] for step in made.steps]
    assert verbs[:3] == [("build", "--plan"), ("rank", "weights"), ("pack", "--plan")]
    assert made.budget is None


def test_profile_local_on_nodes_needs_folders_that_can_be_mounted() -> None:
    where = each_node(fleet_for(profile.load("tp3")), model_dir="models")
    assert "not an absolute path" in refused(profile.load("local"), where).says


def advice(where: fleet.Fleet) -> list[str]:
    made = plan.plan(profile.load("tp4"), where, {}, tables={"sps_table": "sha256:0"})
    return [f"{note['level']} {note['node']}: {note['says']}" for note in made.notes]


def test_one_function_of_a_port_is_half_of_it() -> None:
    where = fleet_for(profile.load("tp4"))
    single = tuple(replace(n, hca=n.hca[:1], fabric=n.fabric[:1]) for n in where.nodes)
    said = advice(replace(where, nodes=single))
    assert len(said) == 4
    assert said[0].startswith("warn spark1: A port of a Spark is two functions")


@pytest.mark.parametrize(("subnet", "owner"), [("198.18.0", "proxies"), ("172.17.0", "docker")])
def test_subnets_that_others_use(subnet: str, owner: str) -> None:
    where = fleet_for(profile.load("tp4"))
    nodes = tuple(
        replace(node, fabric=(f"{subnet}.{rank + 1}/24", node.fabric[1]))
        for rank, node in enumerate(where.nodes)
    )
    said = advice(replace(where, nodes=nodes))
    assert len(said) == 4
    assert owner in said[0]


def test_a_table_without_effect_is_said() -> None:
    said = advice(fleet_for(profile.load("tp4"), sps_table="/etc/sps.json"))
    assert len(said) == 1
    assert said[0].startswith("info None: sps_table has no effect")


def test_a_healthy_fleet_hears_nothing() -> None:
    assert advice(fleet_for(profile.load("tp4"))) == []
