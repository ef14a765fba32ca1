"""What an engine's end means: whether it is started again, and which cause is named."""

from __future__ import annotations

import pytest

from dsv41.errors import EngineFailed, Unsafe
from dsv41.foreground import Ran
from dsv41.run.ending import ending
from dsv41.run.wedge import NAMES, Watch, read
from engine_logs import sglang

PCIE = "mlx5_core 0000:01:00.0: mlx5_pci_slot_reset was called\n"
ROWS = "packed Engram shard does not match rank 2 of 3\n"
IMAGE = "launch_server.py: error: unrecognized arguments: --enable-decoder-swa\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
CHILD = "[2026-09-11 23:34:12 TP0] Received sigquit from a child process.\n"


@pytest.mark.parametrize(
    ("ran", "kind", "says"),
    [
        (Ran(status=1, text=PCIE), Unsafe, "D333 The network card fell off PCIe"),
        (Ran(status=-9, text=ROWS + CHILD), Unsafe, "D326 A packed Engram file is missing"),
        (Ran(status=1, text=IMAGE), Unsafe, "D330 This engine does not know a flag"),
        (Ran(status=2, text="usage: x\n"), Unsafe, "exit status 2: a wrong command line"),
        (Ran(status=5, text="D032 no\n"), Unsafe, "exit status 5: a refusal"),
        (Ran(status=1, text=MEMORY + CHILD), EngineFailed, "D312 Weights, KV pool and buffers"),
        (Ran(status=137), EngineFailed, "The engine was ended by SIGKILL."),
        (Ran(status=-15), EngineFailed, "The engine was ended by SIGTERM."),
        (Ran(status=0, text="bye\n"), EngineFailed, "exit status 0; its last line: line 1: bye."),
        (
            Ran(status=137, text=CHILD, out_of_memory=True),
            EngineFailed,
            "the kernel's out-of-memory killer",
        ),
    ],
)
def test_how_an_engine_ended(ran: Ran, kind: type, says: str) -> None:
    found = ending(ran, engine="sglang")
    assert type(found) is kind
    assert found.code == ("D428" if kind is Unsafe else "D427")
    assert says in found.says


def test_what_the_boot_survived_is_not_the_cause() -> None:
    found = ending(Ran(status=1, text=IMAGE + sglang()), engine="sglang")
    assert isinstance(found, EngineFailed)
    assert "D330" not in found.says


TEXT = """\
# HELP sglang:num_running_reqs Running.
sglang:num_running_reqs{model_name="a b",tp_rank="0"} 2.0
sglang:num_running_reqs{model_name="a b",tp_rank="1"} 1.0
sglang:prompt_tokens_total{model_name="a b"} 1e+06
sglang:generation_tokens_total 12
broken line
x{y="1"} NaNsense
"""


def test_metrics_are_summed_over_labels() -> None:
    found = read(TEXT)
    assert found["sglang:num_running_reqs"] == 3
    assert found["sglang:prompt_tokens_total"] == 1_000_000
    assert found["sglang:generation_tokens_total"] == 12
    assert "x" not in found


def looks(engine: str, *, power: float | None, moves: str = "", running: float = 1) -> list[str]:
    """What a watch says of looks 10 s apart for two minutes; `moves` names a series that moves."""
    names = NAMES[engine]
    watch = Watch(engine=engine, window=40.0)
    said = []
    for place in range(13):
        series = {names.generated: 5.0, names.prompt: 7.0, names.running: running}
        series |= dict.fromkeys(names.moving, 3.0)
        if moves:
            series[moves] = float(place)
        said.append(watch.add(series, now=10.0 * place, power=power))
    return said


@pytest.mark.parametrize("engine", NAMES)
def test_frozen_counters_are_a_wedge_and_a_prefill_never(engine: str) -> None:
    said = looks(engine, power=20.0)
    assert [bool(says) for says in said[:6]] == [False] * 5 + [True]
    assert said[5].startswith("D340 Requests run, but nothing is generated")
    for moves in (NAMES[engine].generated, NAMES[engine].prompt, *NAMES[engine].moving):
        assert not any(looks(engine, power=20.0, moves=moves))
    assert not any(looks(engine, power=20.0, running=0))


@pytest.mark.parametrize("power", [60.0, None])
def test_a_gpu_at_work_or_unseen_is_no_wedge(power: float | None) -> None:
    assert not any(looks("sglang", power=power))
    assert any(looks("local", power=power))  # a CPU has no such sign


def test_a_look_that_fails_is_no_evidence() -> None:
    watch = Watch(engine="local", window=1.0)
    for place in range(30):
        series = read("dsv41_generated_tokens_total 1") if place % 4 == 3 else {}
        assert watch.add(series, now=float(place), power=None) == ""
