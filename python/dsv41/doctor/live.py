"""Whether an engine of ours runs on a node, as far as the capture shows."""

from __future__ import annotations

import re
from functools import lru_cache

from dsv41.diagnose import Diagnosis, Expect, judge_log
from dsv41.doctor.check import Case
from dsv41.doctor.readings import gpu_processes

_ENGINE = re.compile(r"sglang|vllm|dsv41|enginecore", re.IGNORECASE)
_PYTHON = re.compile(r"python|without a name", re.IGNORECASE)


@lru_cache(maxsize=16)  # several checks ask, and a log can have megabytes
def diagnosis(text: str, expect: Expect, rank: int) -> Diagnosis:
    """What the engine log of a rank tells."""
    return judge_log(text, expect, rank=rank)


def is_engine(name: str, *, booted: bool) -> bool:
    """Whether a GPU process is an engine's: by its title, or Python where an engine has booted."""
    return bool(_ENGINE.search(name)) or (booted and bool(_PYTHON.search(name)))


def booted(case: Case) -> bool:
    """Whether the engine log shows a boot that came to its weights and did not fail."""
    if not case.has("engine-log") or not case.text("engine-log").strip():
        return False
    found = diagnosis(case.text("engine-log"), case.expect, case.rank)
    stage = found.reached.stage
    return stage is not None and stage.name not in ("start", "dist-init") and found.status != "fail"


def serves(case: Case) -> bool:
    """Whether our engine holds this node's GPU now."""
    if not case.has("compute-apps") or not booted(case):
        return False
    return any(is_engine(process.name, booted=True) for process in gpu_processes(case))
