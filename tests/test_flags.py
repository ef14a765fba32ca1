"""Every flag that is emitted is known to the engines' own parsers (make test-flags)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsv41 import plan
from dsv41.engines.trees import TREES
from planned import fleet_for, planned, profile_with

ROOT = Path(__file__).parent.parent
ENGINES = ROOT / ".cache" / "engines"
PYTHON = ENGINES / "sglang-0.5.23" / "bin" / "python"
PROFILES = ("tp3", "tp4", "tp4-ring")
TREE = TREES["sglang-0.5.23"]

pytestmark = [pytest.mark.flags, pytest.mark.timeout(300)]


def sglang_commands() -> list[list[str]]:
    """The engine's part of every rank's command line; drafts off and tables given count too."""
    plans = [planned(name) for name in PROFILES]
    plain = profile_with("tp3", drafter="off", loader_mmap=False)
    plans.append(plan.plan(plain, fleet_for(plain), {}))
    tables = {"sps_table": "/etc/sps.json", "sts_table": "/etc/sts.json"}
    four = profile_with("tp4")
    digests = dict.fromkeys(tables, "sha256:0")
    plans.append(plan.plan(four, fleet_for(four, **tables), {}, tables=digests))
    return [list(rank.argv[3:]) for made in plans for rank in made.ranks]


def vllm_commands() -> list[list[str]]:
    """Every rank, then the head of each variant."""
    ranks = planned("tp4-cycle").ranks
    variants: list[dict[str, Any]] = [{"eager": True}, {"text_only": True}, {"drafter": "off"}]
    heads = [planned("tp4-cycle", **variant).ranks[0] for variant in variants]
    return [list(rank.argv[4:]) for rank in (*ranks, *heads)]


def variables(prefix: str, *profiles: str) -> list[str]:
    names = {name for profile in profiles for name in planned(profile).ranks[0].env}
    return sorted(name for name in names if name.startswith(prefix))


def ask(request: pytest.FixtureRequest, script: str, **question: Any) -> dict[str, Any]:
    if "flags" not in str(request.config.getoption("-m")):
        pytest.skip("asks the real engines, which takes half a minute: make test-flags")
    if not PYTHON.exists():
        pytest.skip(f"THE ENGINES ARE NOT INSTALLED in {ENGINES}: make test-flags installs them")
    path = {"PYTHONPATH": str(ENGINES / "vllm-0.33.0")} if "vllm" in script else {}
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / script],
        input=json.dumps(question),
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.rsplit("\nANSWER ", 1)[1])
    return found


@pytest.fixture(scope="module")
def sglang(request: pytest.FixtureRequest) -> dict[str, Any]:
    names = variables("SGLANG_", *PROFILES)
    return ask(request, "sglang_parser.py", argv=sglang_commands(), variables=names)


@pytest.fixture(scope="module")
def vllm(request: pytest.FixtureRequest) -> dict[str, Any]:
    names = variables("VLLM_", "tp4-cycle")
    return ask(request, "vllm_parser.py", argv=vllm_commands(), variables=names)


def test_sglang_knows_every_flag_and_choice(sglang: dict[str, Any]) -> None:
    """An unknown one would have ended the parser; what it read is what was meant."""
    assert len(sglang["parsed"]) == len(sglang_commands()) == 3 + 4 + 4 + 3 + 4
    first = sglang["parsed"][0]
    meant = {
        "tp_size": 3,
        "ep_size": 1,
        "context_length": 262_144,
        "max_total_tokens": 655_360,
        "max_running_requests": 4,
        "chunked_prefill_size": 768,
        "mem_fraction_static": 0.95,
        "speculative_algorithm": "DSPARK",
        "speculative_dspark_block_size": 5,
        "speculative_use_block_verification": True,
        "enable_decoder_swa_bounded_replay": True,
        "min_free_slots_delay": 1,
        "nnodes": 3,
        "node_rank": 0,
        "api_key": None,
    }
    assert {key: first[key] for key in meant} == meant
    assert {one["node_rank"] for one in sglang["parsed"][:3]} == {0, 1, 2}


def test_sglang_declares_every_variable(sglang: dict[str, Any]) -> None:
    undeclared = set(variables("SGLANG_", *PROFILES)) - sglang["variables"].keys()
    assert undeclared <= {"SGLANG_HOST_IP"}  # read in utils/network.py by os.getenv
    assert sglang["variables"]["SGLANG_FLASHINFER_MOE_FUSED_FINALIZE"] == "False"
    assert sglang["variables"]["SGLANG_RAGGED_VERIFY_MODE"] == "'static'"


def test_what_the_profiles_work_around_is_still_there(sglang: dict[str, Any]) -> None:
    assert sglang["behaviors"]["equal_blocks"]
    assert sglang["behaviors"]["slices_of_128"]
    assert TREE.slice_multiple == 128


def test_vllm_reads_what_was_meant(vllm: dict[str, Any]) -> None:
    head, *workers = vllm["parsed"][:4]
    meant = {
        "model_tag": "/models/DeepSeek-V4.1-Flash",
        "headless": False,
        "served_model_name": ["deepseek-v4.1-flash", "deepseek-flash"],
        "tensor_parallel_size": 4,
        "nnodes": 4,
        "node_rank": 0,
        "max_model_len": 430_080,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.83,
        "block_size": 128,
        "limit_mm_per_prompt": {"image": 4},
        "default_chat_template_kwargs": {"thinking": False},
        "indexer_topk": "per_row",
        "engram_cpu_offload": True,
        "capture_sizes": [5, 6, 10, 12, 15, 18, 20, 24, 25, 30, 35, 36, 40, 42, 48],
        "api_key": None,
    }
    assert {key: head[key] for key in meant} == meant
    assert head["speculative_config"]["rejection_sample_method"] == "block"
    assert [(w["headless"], w["node_rank"]) for w in workers] == [(True, r) for r in (1, 2, 3)]


def test_vllm_takes_the_overrides(vllm: dict[str, Any]) -> None:
    eager, text, plain = vllm["parsed"][4:]
    assert (eager["enforce_eager"], text["language_model_only"]) == (True, True)
    assert plain["speculative_config"] is None
    assert plain["capture_sizes"] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_vllm_declares_every_variable(vllm: dict[str, Any]) -> None:
    assert vllm["variables"] == variables("VLLM_", "tp4-cycle")
