"""Engine logs: how far the boot came, and what was promised against what came out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv41.diagnose import Diagnosis, Expect, judge_log
from dsv41.diagnose.log import last_boot, read
from engine_logs import Asked, sglang, sglang_worker, stamped, vllm

TP3 = Expect(
    profile="tp3",
    engine="sglang",
    tp=3,
    pool_tokens=750_000,
    slots=4,
    chunk=768,
    context=262_144,
    draft_window=5,
)
CYCLE = Expect(
    profile="tp4-cycle",
    engine="vllm",
    tp=4,
    slots=8,
    chunk=8192,
    context=430_080,
    draft_window=5,
    needs_ring=True,
)


def levels(found: Diagnosis) -> dict[str, str]:
    return {finding.code: finding.level for finding in reversed(found.findings)}


def failed(found: Diagnosis) -> list[str]:
    return [finding.says for finding in found.findings if finding.level == "fail"]


def test_a_healthy_boot_of_sglang() -> None:
    found = judge_log(sglang(), TP3)
    assert (found.status, found.reached.stage and found.reached.stage.name) == ("ok", "ready")
    body = found.document()
    assert body["requested"] == {
        "pool_tokens": 750_000, "slots": 4, "chunk": 768, "context": 262_144, "draft_window": 5,
    }  # fmt: skip
    assert body["effective"]["pool_tokens"] == 749_824  # whole pages of 256: no loss
    assert body["effective"]["slots"] == 4
    assert body["effective"]["draft_window"] == 5
    assert body["effective"]["pool_room"] == 5_491_200
    assert body["effective"]["available_gib"] == 7.68
    assert body["restart"] is True


def test_a_healthy_boot_of_vllm() -> None:
    found = judge_log(vllm(), CYCLE)
    assert (found.status, found.engine) == ("ok", "vllm")
    effective = {"context": 430_080, "draft_window": 5, "chunk": 8192, "pool_tokens": 2_182_642}
    assert effective.items() <= found.document()["effective"].items()
    assert found.limits.effective["slots"] == 8


@pytest.mark.parametrize("rank", [1, 2])
def test_a_worker_is_ready_without_a_server(rank: int) -> None:
    for known in (rank, None):
        found = judge_log(sglang_worker(rank), TP3, rank=known)
        assert found.reached.ready
        assert found.status == "ok"
        assert found.reached.ranks == {rank: "graphs"}
    assert judge_log(
        vllm().split("(APIServer pid=1) INFO Starting")[0], CYCLE, rank=rank
    ).reached.ready


def test_the_published_clamp_fails() -> None:
    """Six slots of eight and a pool of 206,635: the log of user report P05."""
    asked = Asked(pool=750_000, slots=8, chunk=2048)
    found = judge_log(sglang(asked, pool=206_635, slots=6), TP3)
    assert found.status == "fail"
    assert len(failed(found)) == 2
    assert "206,635" in failed(found)[0]
    assert "750,000" in failed(found)[0]
    assert "with 6 requests at once, 8 were" in failed(found)[1]


def test_the_word_why_slots_were_lowered() -> None:
    text = (
        sglang(slots=2) + "max_running_requests is capped to 2 by the mamba state cache (size=9)\n"
    )
    assert "capped by mamba state cache" in failed(judge_log(text, TP3))[0]


@pytest.mark.parametrize(
    ("text", "expect", "words"),
    [
        (sglang(pool=749_823), TP3, "749,823"),
        (sglang(window=3), TP3, "3 drafted tokens"),
        (sglang(Asked(context=131_072)), TP3, "131,072 context tokens, 262,144"),
        (sglang(Asked(chunk=512)), TP3, "512 prefill chunk tokens"),
        (vllm(context=262_144), CYCLE, "262,144 context tokens"),
    ],
)
def test_every_limit_below_plan_fails(text: str, expect: Expect, words: str) -> None:
    assert any(words in says for says in failed(judge_log(text, expect)))


def test_vllm_fits_the_context_when_asked_to() -> None:
    text = vllm() + "Auto-fit max_model_len: reduced from 430,080 to 299,904 to fit memory\n"
    assert "299,904 context tokens" in failed(judge_log(text, CYCLE))[0]


def test_more_than_planned_is_no_clamp() -> None:
    asked = Asked(pool=3_000_000, chunk=1024, context=1_048_576)
    found = judge_log(sglang(asked, pool=2_999_808), TP3)
    assert found.status == "ok"
    assert found.document()["requested"]["pool_tokens"] == 3_000_000


def test_less_asked_than_planned_is_named() -> None:
    assert levels(judge_log(sglang(Asked(slots=2), slots=2), TP3))["D303"] == "warn"


def test_without_an_echo_the_plan_is_what_was_requested() -> None:
    text = "\n".join(line for line in sglang().splitlines() if "server_args" not in line)
    assert judge_log(text, TP3).document()["requested"]["slots"] == 4


@pytest.mark.parametrize(
    ("upto", "stage", "words"),
    [
        ("CustomAllreduce", "dist-init", "nccl.conf"),
        ("Load weight begin", "weights", "48 shards"),
        ("Load weight end", "weights-ready", "repacked"),
        ("Memory pool end", "kv-pool", "KV pool"),
        ("Running FlashInfer", "autotune", "36 min"),
        ("Capture target verify CUDA graph begin", "graphs", "captured"),
        ("max_total_num_tokens", "limits", "HTTP"),
        ("Uvicorn", "http", "warm-up"),
    ],
)
def test_a_log_that_stops(upto: str, stage: str, words: str) -> None:
    lines = sglang().splitlines()
    end = next(n for n, line in enumerate(lines) if upto in line)
    found = judge_log("\n".join(lines[: end + 1]), TP3)
    assert found.document()["stage"] == stage
    finding = next(f for f in found.findings if f.code == "D300")
    assert finding.level == "unknown"
    assert words in finding.says
    assert not found.reached.ready


def test_shards_are_counted_while_they_load() -> None:
    text = sglang().split("Multi-thread loading shards: 100%")[0]
    assert "(42 of 48 shards)" in judge_log(text, TP3).findings[0].says


def test_ranks_that_fall_behind_are_named() -> None:
    both = stamped(["Init torch distributed ends."], rank=0) + stamped(
        ["Init torch distributed begin."], rank=2
    )
    found = judge_log(both, TP3)
    assert found.reached.ranks == {0: "dist-ready", 2: "dist-init"}
    assert "ranks [2] are behind" in found.findings[0].says


def test_only_the_last_boot_counts() -> None:
    died = sglang(slots=2) + "Rank 0 scheduler died (exit code: -9)\n"
    assert judge_log(died, TP3).status == "fail"
    assert judge_log(died + sglang(), TP3).status == "ok"


def test_logs_of_several_ranks_in_one_file_are_one_boot() -> None:
    starts = [line for line in sglang().splitlines() if "server_args" in line] * 3
    text = "\n".join(starts) + "\n" + sglang()
    assert len(last_boot(read(text))) == len(read(text))


def test_no_key_is_quoted() -> None:
    text = sglang() + "error: unrecognized arguments: --api-key sk-very-secret\n"
    for expect in (TP3, CYCLE):
        assert "sk-very-secret" not in str(judge_log(text, expect).document())
        assert "sk-very-secret" not in str(judge_log(vllm(), expect).document())


def test_control_codes_are_undone() -> None:
    text = sglang().replace("The server", "\x1b[1;32mThe server\x1b[0m")
    assert judge_log(text, TP3).reached.ready


@pytest.mark.parametrize("text", ["", "\n\n", "hello\nworld\n", "\x00\xff\x1b["])
def test_what_is_no_log_is_unknown(text: str) -> None:
    found = judge_log(text, TP3)
    assert (found.status, found.document()["stage"]) == ("unknown", None)
    assert found.document()["restart"] is None


LINES = [line for text in (sglang(), vllm(), sglang_worker(1)) for line in text.splitlines()]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 300)), max_size=12),
    st.sampled_from([TP3, CYCLE]),
)
def test_cut_lines_never_raise(cuts: list[tuple[str, int]], expect: Expect) -> None:
    found = judge_log("\n".join(line[:length] for line, length in cuts), expect)
    assert found.document()["status"] in {"ok", "info", "unknown", "warn", "fail"}


@settings(deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")))
def test_junk_never_raises(junk: bytes) -> None:
    text = junk.decode("utf-8", "replace")
    for mixed in (text, sglang() + text, f"max_total_num_tokens={text}"):
        judge_log(mixed, TP3).document()


def test_a_huge_number_is_no_limit() -> None:
    text = "max_total_num_tokens=" + "9" * 5000 + ", max_running_requests=\n"
    assert judge_log(text, TP3).limits.effective == {}
