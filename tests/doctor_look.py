"""Look at an edited bundle and pick findings out of the report."""

import json
from collections.abc import Callable
from typing import Any

import bundles
from dsv41.doctor import Report, judge

Texts = dict[str, dict[str, str]]


def look(place: bundles.Site, texts: Texts) -> Report:
    return judge(bundles.bundle(texts), place.fleet, place.expect)


def found(report: Report, code: str, level: str) -> list[str]:
    return [f"{f.node}: {f.says}" for f in report.findings if (f.code, f.level) == (code, level)]


def one(report: Report, code: str, level: str = "fail") -> str:
    says = found(report, code, level)
    assert len(says) == 1, says
    return says[0]


def edit(texts: Texts, node: str, probe: str, old: str, new: str) -> Texts:
    assert old in texts[node][probe], (probe, old)
    texts[node][probe] = texts[node][probe].replace(old, new)
    return texts


def edit_links(texts: Texts, node: str, change: Callable[[dict[str, Any]], None]) -> Texts:
    """Change every interface of a node, in `ip -j addr` and `ip -j link` alike."""
    for probe in ("ip-addr", "ip-link"):
        rows = json.loads(texts[node][probe])
        for row in rows:
            change(row)
        texts[node][probe] = json.dumps(rows)
    return texts
