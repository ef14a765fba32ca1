"""Known failures: each has a line that shows it, and none is seen in a healthy log."""

import re
from pathlib import Path

import pytest

from dsv41.diagnose import PATTERNS, Expect, Pattern, judge_log
from dsv41.errors import explanations
from engine_logs import sglang, vllm

TP3 = Expect(profile="tp3", engine="sglang", tp=3)
RING = Expect(profile="tp4-ring", engine="sglang", tp=4, needs_ring=True)
CYCLE = Expect(profile="tp4-cycle", engine="vllm", tp=4, needs_ring=True)

# the exact strings of the reports, as the programs write them
CASES = Path(__file__).parent / "cases" / "diagnose" / "known-failures.tsv"
SHOWN = dict(line.split("\t", 1) for line in CASES.read_text().splitlines())


def boot_that_stops() -> str:
    return sglang().split("Init torch distributed ends")[0].rsplit("\n", 1)[0] + "\n"


def found(text: str, expect: Expect = TP3) -> dict[str, str]:
    return {finding.code: finding.level for finding in judge_log(text, expect).findings}


def test_every_pattern_has_its_line_and_its_explanation() -> None:
    codes = [pattern.code for pattern in PATTERNS]
    assert sorted(codes) == sorted(SHOWN)
    assert len(set(codes)) == len(codes)
    assert set(codes) <= explanations().keys()


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.code)
def test_it_is_found_where_it_is_and_only_there(pattern: Pattern) -> None:
    engine = pattern.engines[0]
    expect = TP3 if engine == "sglang" else CYCLE
    with_it = boot_that_stops() + SHOWN[pattern.code] + "\n"
    assert found(with_it, expect)[pattern.code] == pattern.level
    for healthy in (sglang(), vllm()):
        assert pattern.code not in found(healthy)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.code)
def test_each_says_cause_and_remedy(pattern: Pattern) -> None:
    assert pattern.says.endswith((".", ")."))
    assert bool(pattern.fix) == (pattern.level != "info")
    finding = next(
        f
        for f in judge_log(boot_that_stops() + SHOWN[pattern.code], TP3).findings
        if f.code == pattern.code
    )
    assert re.search(r"\(line \d+: ", finding.says)
    assert "?" not in finding.says.split("(line")[0]


def test_the_general_error_is_left_out_where_its_line_says_more() -> None:
    line = "ncclSystemError: ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    text = boot_that_stops() + line + "\n"
    assert found(text)["D310"] == "fail"
    assert "D323" not in found(text)
    assert found(text + SHOWN["D323"])["D323"] == "fail"


def test_causes_come_before_consequences() -> None:
    shown = ("D327", "D322", "D323", "D313", "D310")
    text = boot_that_stops() + "".join(SHOWN[code] + "\n" for code in shown)
    order = [f.code for f in judge_log(text, TP3).findings if f.level == "fail"]
    assert order == ["D310", "D313", "D323", "D322", "D327"]


def test_a_modified_pair_is_named() -> None:
    finding = judge_log(boot_that_stops() + SHOWN["D313"], TP3).findings[0]
    assert "errno 110, device rocep1s0f1:1, remote ::ffff:10.0.33.3" in finding.says
    assert found("NCCL INFO Call to ibv_modify_qp failed", TP3)["D313"] == "fail"


def test_a_retry_that_the_boot_survived_is_no_failure() -> None:
    early = SHOWN["D313"] + "\n" + sglang()
    assert found(early)["D313"] == "info"
    assert judge_log(early, TP3).status == "info"
    late = sglang() + SHOWN["D313"] + "\n"
    assert found(late)["D313"] == "fail"


def test_what_harms_a_running_service_fails_although_it_became_ready() -> None:
    for code in ("D317", "D312", "D333"):
        assert found(SHOWN[code] + "\n" + sglang())[code] == "fail"


def test_driver_noise_alone_never_fails_a_healthy_rank() -> None:
    noisy = sglang() + (SHOWN["D334"] + "\n") * 55
    diagnosis = judge_log(noisy, TP3)
    assert diagnosis.status == "info"
    finding = next(f for f in diagnosis.findings if f.code == "D334")
    assert "55 times" in finding.says


def test_a_card_that_fell_off_is_not_to_be_restarted() -> None:
    diagnosis = judge_log(sglang() + SHOWN["D333"], TP3)
    assert diagnosis.document()["restart"] is False
    assert "power adapter" in diagnosis.findings[0].fix
    assert judge_log(sglang() + SHOWN["D312"], TP3).restart


def test_two_libraries_are_an_error_for_sglang_only() -> None:
    warning = SHOWN["D319"].replace("AssertionError", "WARNING")
    assert found(boot_that_stops() + warning)["D319"] == "fail"
    assert "D319" not in found(vllm() + warning, CYCLE)


OFF = (
    "NCCL INFO Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY\n"
    "NCCL INFO PAT transport setup disabled by NCCL_SWITCHLESS_RING_ONLY\n"
)
LATER = OFF.replace("PAT transport setup", "Pat transport")  # 2.32.3
SKIPPED = (
    "SWITCHLESS: skipping ncclTransportTreeConnect\nSWITCHLESS: skipping ncclTransportPatConnect\n"
)
RINGS = "NCCL INFO Connected all rings, use ring PXN 0 GDR 0\n"


@pytest.mark.parametrize("lines", [OFF, LATER, SKIPPED])
@pytest.mark.parametrize("expect", [RING, CYCLE])
def test_rings_only_is_proven(lines: str, expect: Expect) -> None:
    seen = found(RINGS + lines + sglang(), expect)
    assert seen["D338"] == "ok"
    assert "D318" not in seen


def test_stock_nccl_on_a_ring() -> None:
    died = boot_that_stops() + RINGS + SHOWN["D323"] + "\n"
    assert found(died, RING)["D338"] == "fail"
    assert "D338" not in found(died, TP3)
    half = RINGS + OFF.splitlines()[0] + "\n" + sglang()
    assert "PAT is off" in judge_log(half, RING).findings[0].says
    assert "D338" not in found(sglang(), RING)
