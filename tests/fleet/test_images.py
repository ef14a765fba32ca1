"""The image comes to a machine by its digest: cut in the middle, the same command goes on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet import fleets, serving
from fleet.fleets import Fleet
from fleet.image import Image
from fleet.waiting import until


@pytest.fixture
def bare(local_image: Image) -> Iterator[Fleet]:
    """Three machines, the last without an image."""
    with fleets.running(3, image=local_image, topology="triangle", bare=(2,)) as fleet:
        yield fleet


@pytest.mark.timeout(600)
def test_a_copy_that_is_cut_goes_on_and_ends_with_the_same_digest(bare: Fleet) -> None:
    at = ("--profile", "local", "--fleet", str(bare.file), "--image", bare.image.reference)
    words = ("build", *at, "--from", str(bare.image.layout))
    exists = ("podman", "image", "exists", bare.image.reference)
    assert [machine.status(*exists) for machine in bare.machines] == [0, 0, 1]
    out = bare.folder / "cut.log"
    with out.open("wb") as log:
        first = subprocess.Popen(bare.command(*words), stdout=log, stderr=log)
        until(lambda: _bytes(bare[2].own("/srv")) > 50_000_000, seconds=120)
        bare[2].stop_sshd()
        status = first.wait(120)
    assert status == 3, out.read_text()
    assert "spark3" in out.read_text()
    assert bare[2].status(*exists) == 1
    bare[2].start_sshd()
    began = time.monotonic()
    said = bare.dsv41(*words, seconds=280)
    assert said.status == 0, said
    assert bare[2].status(*exists) == 0
    (bare.folder / "copy-seconds").write_text(f"{time.monotonic() - began:.1f}\n")
    again = bare.dsv41(*words)
    assert again.status == 0, again
    assert serving.serve(bare).status == 0
    serving.stop(bare)


def _bytes(folder: Path) -> int:
    return int(
        subprocess.run(
            ["du", "-sb", str(folder)], capture_output=True, text=True, check=False
        ).stdout.split()[0]
    )
