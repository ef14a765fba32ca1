"""A tiny image from packages to a running container: nix, registry, skopeo, podman.

Part of `make test-image-local`, which has the programs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from nix_images import BASES, CONFIG, NIX, ROOT, blob, manifest_of
from oci_registry import Content, serving
from test_images_sources import FILES, wheel

pytestmark = pytest.mark.images

ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
PROGRAM = '#include <cstdio>\nint main() { std::puts("here"); }\n'
EXPRESSION = """
  let lib = import {root}/tests/nix/hostpkgs/lib.nix;
      pkgs = import {root}/tests/nix/hostpkgs {{ inherit lib; system = builtins.currentSystem; }};
      machinery = import {root}/nix/images/machinery.nix {{ inherit lib pkgs; bases = {bases}; }};
  in machinery.image {{
    name = "tiny";
    arch = "{arch}";
    config.entrypoint = [ "/bin/program" ];
    layers = [
      (machinery.layer {{
        name = "wheel";
        sources = [ {{
          type = "wheel"; file = "pkg-1.0-py3-none-any.whl";
          path = "${{{folder}/stored}}"; prefix = "opt/x"; site = "opt/x/site";
        }} ];
      }})
      (machinery.layer {{
        name = "program";
        replaces = {replaces};
        sources = [
          {{ type = "tree"; owner = "program"; to = "{to}"; path = "${{{folder}/made}}"; }}
        ];
      }})
    ];
  }}"""


@pytest.fixture(scope="module", autouse=True)
def _asked(request: pytest.FixtureRequest) -> None:
    if "images" not in str(request.config.getoption("-m")):
        pytest.skip("runs podman: make test-image-local")
    for program in (str(NIX), "podman", "skopeo", "g++"):
        if shutil.which(program) is None:
            pytest.fail(f"{program} is not installed: see make test-image-local")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NIX_CONFIG": CONFIG, "DSV41_SITE": sysconfig.get_path("purelib")}
    return subprocess.run(command, env=environment, check=False, text=True, capture_output=True)


def said(*command: str) -> str:
    done = run(*command)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, and a program that needs no library."""
    folder = tmp_path_factory.mktemp("tiny")
    wheel(folder, FILES)
    (folder / "made").mkdir()
    (folder / "program.cpp").write_text(PROGRAM)
    said("g++", "-static", "-o", f"{folder}/made/program", f"{folder}/program.cpp")
    return folder


def expression(parts: Path, *, to: str = "bin", replaces: str = "[ ]") -> str:
    arch = ARCH[platform.machine()]
    return EXPRESSION.format(
        root=ROOT, bases=BASES, folder=parts, arch=arch, to=to, replaces=replaces
    )


@pytest.fixture(scope="module")
def layout(parts: Path) -> Path:
    build = [str(NIX), "build", "--impure", "--no-link", "--print-out-paths"]
    return Path(said(*build, "--expr", expression(parts)))


@pytest.fixture
def reference(layout: Path) -> Iterator[str]:
    """The image in a registry, by its digest."""
    manifest = manifest_of(layout)
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    content = Content(headers={"Content-Type": manifest["mediaType"]})
    digest = content.add(data)
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert digest == entry["digest"]
    for part in (manifest["config"], *manifest["layers"]):
        content.add(blob(layout, part["digest"]).read_bytes())
    with serving(content) as url:
        yield f"{url.removeprefix('http://')}@{digest}"


def test_skopeo_takes_it_from_a_registry(reference: str, tmp_path: Path) -> None:
    words = ["--src-tls-verify=false", "--preserve-digests"]
    said("skopeo", "copy", *words, f"docker://{reference}", f"oci:{tmp_path}/copy:tiny")
    (entry,) = json.loads((tmp_path / "copy" / "index.json").read_text())["manifests"]
    assert entry["digest"] == reference.partition("@")[2]
    for file in (tmp_path / "copy" / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name


def test_podman_runs_it_by_its_digest(reference: str) -> None:
    try:
        said("podman", "pull", "--quiet", "--tls-verify=false", reference)
        assert said("podman", "run", "--rm", "--network=none", reference) == "here"
    finally:
        run("podman", "rmi", "--force", reference)


def test_a_layer_that_covers_a_file_unasked_makes_no_image(parts: Path) -> None:
    """The wheel has opt/x/site/pkg/__init__.py; so does the upper layer then."""
    (parts / "made" / "__init__.py").write_text("other")
    path = "opt/x/site/pkg/__init__.py"
    build = [str(NIX), "build", "--impure", "--no-link", "--expr"]
    done = run(*build, expression(parts, to="opt/x/site/pkg"))
    assert done.returncode != 0
    assert f"D184 {path} is a file of the layer wheel and a file of program." in done.stderr
    said(*build, expression(parts, to="opt/x/site/pkg", replaces=f'[ "{path}" ]'))
