"""Healthy fleets pass; what is missing is unknown; junk never raises."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bundles
from dsv41.diagnose import JUDGED, PATTERNS
from dsv41.doctor import CHECKS, NOT_PROBED, PROBES, Report, answered, judge
from dsv41.doctor.reference import markdown
from dsv41.errors import explanations
from dsv41.finding import LEVELS, Finding, ranked, worst
from engine_logs import Asked, sglang, sglang_worker

SITES = [bundles.site(t, nixos=n) for t in ("triangle", "switch", "ring") for n in (False, True)]
TRIANGLE = SITES[0]


def look(site: bundles.Site, texts: dict[str, dict[str, str]]) -> Report:
    return judge(bundles.bundle(texts), site.fleet, site.expect)


def above_info(report: Report) -> list[Finding]:
    return [f for f in report.findings if LEVELS.index(f.level) > LEVELS.index("info")]


@pytest.mark.parametrize("site", SITES, ids=lambda s: f"{s.fleet.topology}-{s.nixos}")
def test_a_healthy_fleet(site: bundles.Site) -> None:
    report = look(site, bundles.healthy(site))
    assert above_info(report) == []
    assert report.exit_status == 0
    assert report.blocking() == ()
    quiet = {"D201", "D202"} | ({"D239"} if site.fleet.topology != "switch" else set())
    quiet |= {"D244"} if site.fleet.topology != "ring" else set()
    seen = {finding.code for finding in report.findings if finding.level in ("ok", "info")}
    assert {check.code for check in CHECKS} - seen <= quiet | {"D254"}


@pytest.mark.parametrize("site", SITES, ids=lambda s: f"{s.fleet.topology}-{s.nixos}")
def test_a_serving_fleet_is_healthy(site: bundles.Site) -> None:
    """Little memory is left, the engine has the GPU, its log is there: nothing is wrong."""
    texts = bundles.healthy(site)
    for rank, node in enumerate(site.fleet.nodes):
        texts[node.name] |= {
            "engine-log": sglang_worker(rank) if rank else sglang(Asked(pool=749_824)),
            "compute-apps": "4242, sglang::scheduler_TP0, [N/A]\n900, /usr/lib/xorg/Xorg, 40 MiB\n",
            "nvidia-smi": "NVIDIA GB10, 96 %, 2196 MHz, 61.70 W, [N/A], [N/A], 66\n",
            "meminfo": bundles.MEMINFO.replace("121634816", "6659708").replace(
                "120586240", "999999"
            ),
        }
    assert above_info(look(site, texts)) == []


def test_added_probes_may_be_absent() -> None:
    for site in SITES:
        texts = bundles.healthy(site)
        for node in texts.values():
            for probe in PROBES:
                if probe.added:
                    del node[probe.name]
        report = look(site, texts)
        assert above_info(report) == []
        assert "D238" in {finding.code for finding in report.findings if finding.level == "info"}


@pytest.mark.parametrize("probe", [p.name for p in PROBES if not p.added])
def test_a_missing_probe_is_unknown_never_ok(probe: str) -> None:
    texts = bundles.healthy(TRIANGLE)
    del texts["spark1"][probe]
    report = look(TRIANGLE, texts)
    unknown = {f.code for f in report.findings if f.level == "unknown"}
    assert unknown
    assert report.status == "unknown"
    assert report.exit_status == 0
    needing = {check.code for check in CHECKS if probe in check.probes}
    assert needing <= unknown
    ok = {f.code for f in report.of(0) if f.level == "ok"}
    assert not ok & needing
    assert all(probe in f.says for f in report.findings if f.level == "unknown")


def test_required_checks_block_when_unknown() -> None:
    texts = bundles.healthy(TRIANGLE)
    del texts["spark2"]["meminfo"]
    report = look(TRIANGLE, texts)
    blocking = {finding.code for finding in report.blocking()}
    assert {"D210", "D212", "D215"} == blocking
    assert report.blocking(accepted=frozenset(blocking)) == ()
    del texts["spark2"]["swaps"]
    assert "D213" not in {finding.code for finding in look(TRIANGLE, texts).blocking()}


def test_a_node_without_a_capture() -> None:
    texts = bundles.healthy(TRIANGLE)
    del texts["spark3"]
    report = look(TRIANGLE, texts)
    assert report.status == "unknown"
    assert {f.level for f in report.of(2)} == {"unknown", "info"}
    assert "D201" in {f.code for f in report.of(2)}


@pytest.mark.parametrize("text", ["", "\x00\x01nonsense\n", "{}", "[]", "[[1],{}]", "\t\t\n" * 3])
def test_a_node_of_junk_is_never_ok(text: str) -> None:
    texts = bundles.healthy(TRIANGLE)
    texts["spark2"] = dict.fromkeys(texts["spark2"], text)
    report = look(TRIANGLE, texts)
    json.dumps(report.document())
    # words that no sign is found in are quiet; no program on the GPU is an empty answer
    quiet = {"D222"} | ({"D214", "D224", "D225", "D226", "D227"} if text.strip() else {"D227"})
    assert {f.code for f in report.of(1) if f.level == "ok"} <= quiet


@pytest.mark.parametrize("probe", [p.name for p in PROBES])
def test_a_probe_of_junk_never_raises(probe: str) -> None:
    texts = bundles.healthy(TRIANGLE)
    texts["spark2"][probe] = "\x00nonsense\t1\t2\n"
    json.dumps(look(TRIANGLE, texts).document())


FUZZED = bundles.healthy(bundles.site("ring"))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_cut_and_mixed_probes_never_raise(data: Any) -> None:
    names = sorted(FUZZED["spark1"])
    texts = {node: dict(probes) for node, probes in FUZZED.items()}
    for _ in range(3):
        node, name = data.draw(st.sampled_from(sorted(texts))), data.draw(st.sampled_from(names))
        source = FUZZED["spark1"][data.draw(st.sampled_from(names))]
        start = data.draw(st.integers(0, max(0, min(len(source), 3000))))
        text = source[start : start + data.draw(st.integers(0, 3000))]
        texts[node][name] = text + data.draw(st.text(max_size=30))
    site = bundles.site("ring")
    json.dumps(judge(bundles.bundle(texts), site.fleet, site.expect).document())


def test_findings_are_ranked_worst_first() -> None:
    texts = bundles.healthy(TRIANGLE)
    texts["spark1"]["meminfo"] = bundles.MEMINFO.replace("116736", "9116736")
    texts["spark1"]["swaps"] = "Filename\n"
    texts["spark2"]["engine-log"] = sglang_worker(1).replace(
        "Init torch distributed ends", "ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    )
    report = look(TRIANGLE, texts)
    levels = [LEVELS.index(f.level) for f in report.findings]
    assert levels == sorted(levels, reverse=True)
    failed = [f.code for f in report.findings if f.level == "fail"]
    assert failed[0] == "D210"
    assert report.exit_status == 1
    document = report.document()["findings"][0]
    assert list(document) == ["node", "rank", "code", "level", "says", "fix"]
    assert (document["node"], document["rank"]) == ("spark1", 0)


def test_nothing_looked_at_is_unknown() -> None:
    assert worst([]) == "unknown"
    assert ranked([]) == ()
    with pytest.raises(ValueError, match="level"):
        Finding(code="D210", level="bad", says="x")


def test_every_report_of_a1_to_a3_is_in_exactly_one_list() -> None:
    shown = set(answered())
    shown |= {report for pattern in PATTERNS for report in pattern.reports}
    shown |= {report for _, reports in JUDGED.values() for report in reports}
    wanted = {f"P{number:02}" for number in range(1, 46)}
    assert shown & NOT_PROBED.keys() == set()
    assert wanted <= shown | NOT_PROBED.keys()
    assert NOT_PROBED.keys() <= wanted


def test_every_check_is_explained_and_has_one_code() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert set(codes) <= explanations().keys()
    names = {probe.name for probe in PROBES}
    assert all(set(check.probes) <= names for check in CHECKS)


def test_the_reference_page_is_that_of_the_tables() -> None:
    page = Path(__file__).parent.parent / "docs" / "reference" / "checks.md"
    assert page.read_text() == markdown()
