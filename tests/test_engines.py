"""What SGLang and vLLM are started with: every rule of the renderers, on every rank."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from dsv41 import plan, profile, switches
from dsv41.engines.trees import TREES
from dsv41.engines.vllm import capture_sizes
from dsv41.errors import UsageError
from planned import IMAGE, SPARK_PROFILES, each_node, fleet_for, planned, profile_with

# what may differ between ranks: their number and role, their node's network, the key file
OWN_VARIABLES = {
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "HOST_IP",
    "SGLANG_HOST_IP",
    "VLLM_HOST_IP",
    "DSV41_API_KEY_FILE",
}


def made_on(name: str, **fleet_values: Any) -> plan.Plan:
    chosen = profile.load(name)
    return plan.plan(chosen, fleet_for(chosen, **fleet_values), {name: IMAGE})


def value_of(argv: tuple[str, ...], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_ranks_differ_only_where_they_may(name: str) -> None:
    chosen = profile.load(name)
    where = fleet_for(chosen, api_key_file="/etc/dsv41/keys")
    own = replace(
        where.nodes[1], hca=("mlx5_0", "mlx5_1"), socket_ifname="eth0", gid_index=4, sudo=True
    )
    where = replace(where, nodes=(where.nodes[0], own, *where.nodes[2:]))
    head, *workers = plan.plan(chosen, where, {}).ranks
    for worker in workers:
        pairs = {k for k in {**head.env, **worker.env} if head.env.get(k) != worker.env.get(k)}
        assert pairs <= OWN_VARIABLES
        ranks = {"--node-rank", str(worker.rank), "0"}
        flags = set(head.argv) ^ set(worker.argv)
        assert flags <= ranks | {"--headless"}
        assert set(head.mounts) - set(worker.mounts) == {"/etc/dsv41/keys:/run/dsv41/api-key:ro"}
        assert head.options == worker.options
        assert head.fingerprint == worker.fingerprint
    assert workers[0].env["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"
    assert workers[0].env["NCCL_IB_GID_INDEX"] == "4"


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_no_variable_is_empty_and_no_gid_is_guessed(name: str) -> None:
    for rank in planned(name).ranks:
        assert all(rank.env.values())
        assert "NCCL_IB_GID_INDEX" not in rank.env
        assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", key) for key in rank.env)


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("tp3", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False"),
        ("tp4-cycle", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("tp3", "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE", "0"),
        ("tp3", "SGLANG_RUST_BUILD_MODE", "never"),
        ("tp3", "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE", "0"),
        ("tp3", "SGLANG_MAX_NEW_TOKENS_LIMIT", "32768"),
        ("tp3", "SGLANG_DSV41_REASONING_EFFORT", "75"),
        ("tp3", "NCCL_PROTO", "^LL128"),
        ("tp4-cycle", "NCCL_PROTO", "LL,LL128,Simple"),
        ("tp3", "NCCL_NET", "IB"),
        ("tp3", "NCCL_IB_SUBNET_AWARE_ROUTING", "1"),
        ("tp3", "NCCL_IB_MERGE_NICS", "0"),
        ("tp3", "NCCL_BUFFSIZE", "1048576"),
        ("tp4-ring", "NCCL_ALGO", "Ring"),
        ("tp4-ring", "NCCL_SWITCHLESS_RING_ONLY", "1"),
        ("tp4-ring", "NCCL_SKIP_TREE_CONNECT", "1"),
        ("tp4-cycle", "NCCL_CROSS_NIC", "1"),
        ("tp4-cycle", "MAX_JOBS", "2"),
        ("tp4-cycle", "VLLM_USE_BREAKABLE_CUDAGRAPH", "1"),
        ("tp4-cycle", "FLASHINFER_DISABLE_VERSION_CHECK", "1"),
        ("tp4-cycle", "TORCH_CUDA_ARCH_LIST", "12.1a"),
        ("tp3", "DSV41_PACKED_DIR", "/engram"),
        ("tp3", "DSV41_IO_THREADS", "96"),
        ("tp3", "DSV41_TP_PAD", "1"),
        ("tp3", "DSV41_TP_PAD_LAYOUT", "legal"),
        ("tp4", "DSV41_TP_PAD", "0"),
        ("tp4-cycle", "DSV41_ENGRAM_PARTITION", "strided"),
    ],
)
def test_variables(name: str, variable: str, value: str) -> None:
    assert {rank.env[variable] for rank in planned(name).ranks} == {value}


@pytest.mark.parametrize("name", ["tp3", "tp4"])
def test_ring_switches_are_absent_outside_a_ring(name: str) -> None:
    """The older patch acts on their presence, whatever their value."""
    absent = {"NCCL_SWITCHLESS_RING_ONLY", "NCCL_SKIP_TREE_CONNECT", "NCCL_ALGO", "LD_PRELOAD"}
    assert not absent & planned(name).ranks[0].env.keys()


def test_a_second_nccl_never_comes_by_the_environment() -> None:
    for name in SPARK_PROFILES:
        env = planned(name).ranks[0].env
        assert not {"LD_PRELOAD", "LD_LIBRARY_PATH", "VLLM_NCCL_SO_PATH"} & env.keys()


def test_a_given_nccl_is_mounted_over_the_one_of_the_image() -> None:
    chosen = profile.load("tp4-ring")
    where = each_node(fleet_for(chosen), nccl_library="/opt/nccl/libnccl.so.2")
    made = plan.plan(chosen, where, {chosen.name: IMAGE})
    target = TREES[chosen.tree].nccl_path
    assert all(f"/opt/nccl/libnccl.so.2:{target}:ro" in rank.mounts for rank in made.ranks)
    check = next(step for step in made.steps if step.id == "nccl-2")
    assert check.command == ("grep", "-c", "SWITCHLESS_RING_ONLY", "/opt/nccl/libnccl.so.2")
    assert check.effect == "reads hosts"


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_the_container_has_what_it_needs_and_no_more(name: str) -> None:
    options = planned(name).ranks[0].options
    needed = {"--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1:-1"}
    assert needed | {"--network=host", "--shm-size=16g", "--device=nvidia.com/gpu=all"} <= set(
        options
    )
    assert not any("privileged" in o or "gpus" in o or "--ipc" in o for o in options)


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_no_key_is_in_argv_or_environment(name: str) -> None:
    made = made_on(name, api_key_file="/etc/dsv41/keys")
    head, *workers = made.ranks
    assert head.env["DSV41_API_KEY_FILE"] == "/run/dsv41/api-key"
    assert all("DSV41_API_KEY_FILE" not in worker.env for worker in workers)
    assert all("--api-key" not in rank.argv for rank in made.ranks)
    assert all("/etc/dsv41/keys" not in word for rank in made.ranks for word in rank.argv)


def test_one_cache_folder_an_image_and_environment() -> None:
    def cache(made: plan.Plan) -> str:
        (found,) = {m for rank in made.ranks for m in rank.mounts if m.endswith(":/cache")}
        return found

    chosen = profile.load("tp3")
    where = fleet_for(chosen)
    first = cache(plan.plan(chosen, where, {"tp3": IMAGE}))
    other_image = cache(plan.plan(chosen, where, {"tp3": IMAGE.replace("0", "1")}))
    other_environment = cache(planned("tp3", row_threads=32))
    other_flag = cache(planned("tp3", watchdog_seconds=900))
    assert re.fullmatch(r"/var/cache/dsv41/[0-9a-f]{16}:/cache", first)
    assert len({first, other_image, other_environment}) == 3
    assert other_flag == first


@pytest.mark.parametrize(
    "change",
    [
        {"cuda_device_order": "PCI_BUS_ID"},  # no change at all
        {"watchdog_seconds": 900},
        {"row_threads": 32},
        {"served_name": "other"},
    ],
)
def test_whatever_a_rank_runs_is_in_its_fingerprint(change: dict[str, Any]) -> None:
    same = "cuda_device_order" in change
    assert (
        planned("tp3", **change).ranks[0].fingerprint == planned("tp3").ranks[0].fingerprint
    ) is same


def test_tables_are_in_the_fingerprint_and_mounted() -> None:
    chosen = profile.load("tp4")
    where = fleet_for(chosen, sps_table="/etc/sps.json")
    made = [
        plan.plan(chosen, where, {}, tables={"sps_table": digest}) for digest in ("sha256:a", "b")
    ]
    prints = {rank.fingerprint for one in made for rank in one.ranks}
    assert len(prints) == 2
    assert value_of(made[0].ranks[0].argv, "--speculative-dspark-sps-table-path").startswith(
        "/state/"
    )
    assert (
        "/var/lib/dsv41/tables/dspark_sps.json:/state/dspark_sps.json:ro" in made[0].ranks[3].mounts
    )
    assert {"tables-0", "tables-3"} <= {step.id for step in made[0].steps}
    with pytest.raises(UsageError) as caught:
        plan.plan(chosen, where, {})
    assert caught.value.code == "D108"


def test_sglang_without_drafts_and_with_a_plain_loader() -> None:
    argv = planned("tp3", drafter="off", loader_mmap=False).ranks[0].argv
    assert not any("speculative" in word for word in argv)
    assert "--weight-loader-disable-mmap" in argv
    assert value_of(argv, "--model-loader-extra-config") == '{"num_threads":1}'


@pytest.mark.parametrize(("limit", "variable"), [(0, None), (4096, "4096")])
def test_the_output_cap_is_the_engines_own(limit: int, variable: str | None) -> None:
    env = planned("tp3", max_new_tokens=limit).ranks[0].env
    assert env.get("SGLANG_MAX_NEW_TOKENS_LIMIT") == variable
    assert "DSV41_MAX_NEW_TOKENS" not in env


@pytest.mark.parametrize(
    ("name", "tree"),
    [("tp3", "sglang-base"), ("tp4", "sglang-branch"), ("tp4-ring", "sglang-branch")],
)
def test_on_the_recipes_trees(name: str, tree: str) -> None:
    """Knobs of the profile for that tree; what the release does itself is the plugin's there."""
    chosen = profile_with(name, tree=tree, chunk=768)
    env = plan.plan(chosen, fleet_for(chosen), {}).ranks[0].env
    assert env["SGLANG_MAX_NEW_TOKENS_LIMIT"] == "32768"
    assert env["DSV41_IMAGE_TEXT"] == "1"
    assert "DSV41_MAX_NEW_TOKENS" not in env
    assert ("SGLANG_ROCE_ALLREDUCE" in env) == (name == "tp4")
    assert chosen.knobs["block_verify"].omitted


def test_what_the_tree_does_itself_has_no_switch() -> None:
    assert "DSV41_ENGRAM_PREFETCH" in planned("tp3").ranks[0].env
    assert "DSV41_ENGRAM_PREFETCH" not in planned("tp4-cycle").ranks[0].env


def test_capture_sizes_are_exact() -> None:
    expected = [5, 6, 10, 12, 15, 18, 20, 24, 25, 30, 35, 36, 40, 42, 48]
    assert capture_sizes(window=5, slots=8) == expected
    assert capture_sizes(window=0, slots=3) == [1, 2, 3]


def test_vllm_workers_are_headless_and_overrides_take_effect() -> None:
    ranks = planned("tp4-cycle").ranks
    assert ["--headless" in rank.argv for rank in ranks] == [False, True, True, True]
    eager = planned("tp4-cycle", eager=True).ranks[0]
    assert "--enforce-eager" in eager.argv
    assert "--compilation-config" not in eager.argv
    assert "VLLM_USE_BREAKABLE_CUDAGRAPH" not in eager.env
    text = planned("tp4-cycle", text_only=True).ranks[0].argv
    assert "--language-model-only" in text
    assert not {"--limit-mm-per-prompt", "--mm-processor-cache-gb"} & set(text)


@pytest.mark.parametrize("name", SPARK_PROFILES)
def test_switches_are_those_of_the_table(name: str) -> None:
    env = planned(name).ranks[0].env
    known = {switch.env for switch in switches.SWITCHES.values()}
    assert {key for key in env if key.startswith("DSV41_")} <= known
