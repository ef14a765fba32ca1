"""The image of `tp4-cycle` with the wheel's own NCCL: vLLM, and our plugin in it.

By name alone: `make test-image ARGS=tests/test_image_cycle.py`. Its layers are 9.3 GB of their own,
and its root as much again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41.adapters import adapter
from dsv41.adapters.table import VLLM
from emulated import Unpacked, fetched, holders
from emulated_engine import Asking, in_the_image, opened, ranks
from nix_images import ROOT
from test_image_rings import NCCL

IMPORTS = [
    *("torch", "triton", "flashinfer", "vllm", "vllm._custom_ops", "vllm.engine.arg_utils"),
    *("vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server"),
    *("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu.model_runner"),
    *("vllm.models.deepseek_v41.common.engram", "vllm.models.deepseek_v41.nvidia.model"),
    "vllm.models.deepseek_v41.nvidia.flashinfer_sparse",
]
VERSIONS = ["vllm", "torch", "triton", "flashinfer-python"]

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "emulated" not in str(request.config.getoption("-m")):
        pytest.skip("fetches 9.3 GB: make test-image ARGS=tests/test_image_cycle.py")


@pytest.fixture(scope="module")
def receipt() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {"schema": "dsv41.image/1"}
    yield found
    place = Path(os.environ.get("DSV41_RECEIPT", ROOT / ".cache" / "image-cycle.json"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, receipt: dict[str, Any]) -> Unpacked:
    kept = os.environ.get("DSV41_SCRATCH")
    scratch = Path(kept) / "cycle" if kept else tmp_path_factory.mktemp("cycle")
    scratch.mkdir(parents=True, exist_ok=True)
    found, receipt["image"] = opened(fetched("image-tp4-cycle.trial"), scratch)
    return found


@pytest.fixture(scope="module")
def asking(image: Unpacked) -> Asking:
    return Asking(image, image.root.parent)


def test_its_trial_has_the_wheels_nccl_twice_the_same() -> None:
    found = holders(fetched("image-tp4-cycle.trial"), NCCL)
    assert list(found) == ["cudalibs", "nccl"]
    assert len(set(found.values())) == 1


def test_the_engine_imports(asking: Asking, receipt: dict[str, Any]) -> None:
    question = {"machine": None, "versions": VERSIONS, "imports": IMPORTS, "torch": None}
    found = asking.ask("engine.py", question)
    receipt["engine"] = found
    lock = json.loads((ROOT / "nix/images/engine/wheels-vllm-arm64.json").read_text())
    locked = {wheel["name"]: wheel["version"] for wheel in lock["wheels"]}
    assert found["versions"]["found"] == {name: locked[name] for name in VERSIONS}
    imports = found["imports"]["found"]
    assert {name: one["problem"] for name, one in imports.items() if "problem" in one} == {}
    assert list(imports) == IMPORTS


def test_every_hook_is_put_in_by_the_engines_own_loader(
    asking: Asking, receipt: dict[str, Any]
) -> None:
    head = ranks("tp4-cycle")[0]
    binds = in_the_image(head, asking.scratch)
    question = {"preflight": "vllm", "vllm_hooks": None}
    found = asking.ask("engine.py", question, *binds, env=head.env)
    receipt["hooks"] = found
    assert found["preflight"].get("found") == "ok", found["preflight"]
    hooks = found["vllm_hooks"]["found"]
    wanted = [one for one in VLLM if adapter.is_on(one, head.env)]
    assert wanted
    assert set(hooks["on"]) == {one.name for one in wanted}
    targets = {h.target for one in wanted for h in one.hooks if not h.optional}
    assert targets <= set(hooks["targets"])
    assert hooks["from"].startswith("/opt/dsv41/src/python/")
