"""Images for rings without a switch: one NCCL in the place of the wheel's (make test-image).

Those of `tp4-cycle` are put together and asked where the file is named: its layers are 9.3 GB of
their own, and its root as much again (make test-image ARGS=tests/test_image_rings.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv41.adapters import adapter
from dsv41.adapters.table import VLLM
from emulated import SITE, Unpacked, fetched, tars
from emulated_engine import Asking, in_the_image, opened, ranks
from nix_images import ROOT
from stub_library import stub_library

NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
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
        pytest.skip("fetches 4.2 GB and more: make test-image")


@pytest.fixture
def cycle(request: pytest.FixtureRequest) -> None:
    """Asked for by the name of this file alone."""
    if not any(Path(__file__).name in word for word in request.config.invocation_params.args):
        pytest.skip("9.3 GB of layers more: make test-image ARGS=tests/test_image_rings.py")


def digest(tar: Path, name: str) -> str | None:
    """SHA-256 of a member of a layer; None where it has none of that name."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name == name:
                content = archive.extractfile(member)
                assert content
                return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    return None


def owners(layout: Path) -> dict[str, str]:
    """Layers that have an NCCL, bottom to top, each with its SHA-256."""
    found = {name: digest(tar, NCCL) for name, tar in tars(layout).items()}
    return {name: sha256 for name, sha256 in found.items() if sha256}


def test_a_patched_nccl_takes_the_place_of_the_wheels_once(tmp_path: Path) -> None:
    """By a library that stands for the patched one, which is built where CUDA can be had."""
    place = tmp_path / "nccl" / "lib" / "libnccl.so.2"
    place.parent.mkdir(parents=True)
    place.write_bytes(stub_library("libnccl.so.2", ["ncclGetVersion"], machine="aarch64"))
    layout = fetched("image-tp4-ring", "--arg", "nccl", str(tmp_path / "nccl"))
    found = owners(layout)
    assert list(found) == ["cudalibs", "nccl"]
    assert found["nccl"] == hashlib.sha256(place.read_bytes()).hexdigest() != found["cudalibs"]
    assert list(tars(layout))[-2:] == ["nccl", "dsv41"]


@pytest.mark.usefixtures("cycle")
class TestCycle:
    """The image of `tp4-cycle` with the wheel's own NCCL."""

    @pytest.fixture(scope="class")
    def receipt(self) -> Iterator[dict[str, Any]]:
        found: dict[str, Any] = {"schema": "dsv41.image/1"}
        yield found
        place = Path(os.environ.get("DSV41_RECEIPT", ROOT / ".cache" / "image-cycle.json"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(found, indent=1) + "\n")

    @pytest.fixture(scope="class")
    def image(self, tmp_path_factory: pytest.TempPathFactory, receipt: dict[str, Any]) -> Unpacked:
        kept = os.environ.get("DSV41_SCRATCH")
        scratch = Path(kept) / "cycle" if kept else tmp_path_factory.mktemp("cycle")
        scratch.mkdir(parents=True, exist_ok=True)
        found, receipt["image"] = opened(fetched("image-tp4-cycle.trial"), scratch)
        return found

    @pytest.fixture(scope="class")
    def asking(self, image: Unpacked) -> Asking:
        return Asking(image, image.root.parent)

    def test_its_trial_has_the_wheels_nccl_twice_the_same(self) -> None:
        found = owners(fetched("image-tp4-cycle.trial"))
        assert list(found) == ["cudalibs", "nccl"]
        assert len(set(found.values())) == 1

    def test_the_engine_imports(self, asking: Asking, receipt: dict[str, Any]) -> None:
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
        self, asking: Asking, receipt: dict[str, Any]
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
