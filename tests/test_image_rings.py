"""Images for rings without a switch: one NCCL in the place of the wheel's (make test-image)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from emulated import fetched, holders, tars
from stub_library import stub_library

NCCL = "nvidia/nccl/lib/libnccl.so.2"

pytestmark = [pytest.mark.emulated, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "emulated" not in str(request.config.getoption("-m")):
        pytest.skip("fetches 4.2 GB and more: make test-image")


def test_a_patched_nccl_takes_the_place_of_the_wheels_once(tmp_path: Path) -> None:
    """By a library that stands for the patched one, which is built where CUDA can be had."""
    place = tmp_path / "nccl" / "lib" / "libnccl.so.2"
    place.parent.mkdir(parents=True)
    place.write_bytes(stub_library("libnccl.so.2", ["ncclGetVersion"], machine="aarch64"))
    layout = fetched("image-tp4-ring", "--arg", "nccl", str(tmp_path / "nccl"))
    found = holders(layout, NCCL)
    assert list(found) == ["cudalibs", "nccl"]
    assert found["nccl"] == hashlib.sha256(place.read_bytes()).hexdigest() != found["cudalibs"]
    assert list(tars(layout))[-2:] == ["nccl", "dsv41"]
