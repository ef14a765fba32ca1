"""The namespace fleet: asked for by name alone (make test-fleet, make test-fleet-load)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import fleets, image
from fleet.machines import SSHD
from nix_images import NIX

HERE = Path(__file__).parent
PROGRAMS = (str(NIX), "podman", "runc", "skopeo", "ip", "nsenter", "unshare", "ssh", SSHD)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Nothing of this folder is even read unless it is asked for."""
    asked = "fleet" in str(config.getoption("-m"))
    return True if collection_path.parent == HERE and not asked else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here but the long load is marked `fleet`."""
    for item in items:
        if HERE in item.path.parents:
            if item.get_closest_marker("fleet_load") is None:
                item.add_marker(pytest.mark.fleet)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def local_image() -> image.Image:
    """image-local in the store that all machines read."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            pytest.fail(f"{program} is not installed: see make test-fleet")
    return image.image()


@pytest.fixture(scope="session")
def three(local_image: image.Image) -> Iterator[fleets.Fleet]:
    """Three machines in a triangle; every test leaves them able to serve."""
    with fleets.running(3, image=local_image, topology="triangle") as fleet:
        yield fleet


@pytest.fixture
def four(local_image: image.Image) -> Iterator[fleets.Fleet]:
    """Four machines on a switch."""
    with fleets.running(4, image=local_image, topology="switch") as fleet:
        yield fleet
