"""Tests that need a real GPU; on a machine without one they say what they lack, and are skipped."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu.fleet import Fleet, distribution

HERE = Path(__file__).parent
# what `make test-gpu` measured, one JSON object; docs/evidence/gpu.json is a copy of such a file
RECEIPTS = Path(os.environ.get("DSV41_GPU_RECEIPTS", ".cache/gpu-receipts.json"))


@dataclass(frozen=True, kw_only=True)
class Made:
    """Folders of the checkpoint and of its row files."""

    model: Path
    rows: Path


def lacks() -> str:
    """What keeps the tests from running here, or nothing."""
    missing = [name for name in ("torch", "triton", "numpy") if not importlib.util.find_spec(name)]
    if missing:
        return f"no {', '.join(missing)}"
    import torch  # noqa: PLC0415 - two seconds

    if not torch.cuda.is_available():
        return "no CUDA device"
    if torch.cuda.get_device_capability() < (9, 0):
        return "a GPU before SM90"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything below this folder, and skip it loudly where it cannot run."""
    ours = [item for item in items if HERE in item.path.parents]
    reason = lacks() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.timeout(900))
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"GPU test, not run: {reason}"))


@pytest.fixture(scope="session")
def made() -> Made:
    """Checkpoint and rows for the kernels of a GPU, in .cache/gpu; made at first use."""
    from dsv41.local.fixture import checkpoint  # noqa: PLC0415 - only where it is used
    from dsv41.local.fixture.__main__ import pack  # noqa: PLC0415 - as above

    state = Path(os.environ.get("DSV41_GPU_STATE", ".cache/gpu")).resolve()
    model = checkpoint.ensure(state, geometry="gpu-dspark")
    for tp in (1, 2):
        for partition in ("strided", "contiguous-columns", "weighted"):
            pack(model, state / "rows", tp=tp, partition=partition)
    return Made(model=model, rows=state / "rows")


@pytest.fixture(scope="session")
def fleet(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Engine processes; their logs lie in the folder that DSV41_GPU_LOGS names."""
    import torch  # noqa: PLC0415 - as above

    given = os.environ.get("DSV41_GPU_LOGS")
    folder = Path(given) if given else tmp_path_factory.mktemp("engines")
    folder.mkdir(parents=True, exist_ok=True)
    engines = Fleet(
        folder=folder,
        model=made.model,
        rows=made.rows,
        distribution=distribution(made.rows.parent / "distribution"),
        devices=torch.cuda.device_count(),
    )
    yield engines
    engines.stop()


@pytest.fixture(scope="session")
def receipts() -> Iterator[dict[str, Any]]:
    """Figures by name; written down at the end of the session, beside what was there."""
    import torch  # noqa: PLC0415 - as above

    found: dict[str, Any] = json.loads(RECEIPTS.read_text()) if RECEIPTS.exists() else {}
    found |= {
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    yield found
    RECEIPTS.parent.mkdir(parents=True, exist_ok=True)
    RECEIPTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
