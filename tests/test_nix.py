"""The flake's files: pins, lock, layout. `make test-nix` evaluates and builds them."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NIX_FILES = [ROOT / "flake.nix", *sorted((ROOT / "nix").rglob("*.nix"))]
ALL_NIX_FILES = [*NIX_FILES, *sorted((ROOT / "tests" / "nix").rglob("*.nix"))]
NIX = Path(os.environ.get("NIX_PREFIX", "/opt/nix-debian")) / "bin" / "nix"

# (owner/repo, revision, narHash, lastModified), each found alike in several public lock files or
# computed from the revision's git tree by `nix hash path`; none where neither could be had
PINS: dict[str, tuple[str, str, str | None, int | None]] = {
    "nixpkgs": (
        "NixOS/nixpkgs",
        "7fc6f2c20af09cdcaf48b92ec3121860139ec668",
        "sha256-bNyvoIyOCu7lzoCpWKWGIsHpTtERUWzqYWFPlN++WTw=",
        1790635395,
    ),
    "poetry2nix": (
        "nix-community/poetry2nix",
        "ce2369db77f45688172384bbeb962bc6c2ea6f94",
        "sha256-cX98bUuKuihOaRp8dNV1Mq7u6/CQZWTPth2IJPATBXc=",
        1743690424,
    ),
    "flashinfer": (
        "flashinfer-ai/flashinfer",
        "fb28d7242b3506a2348265962041acc1fb56cca4",
        "sha256-ZPyo5UHfXJxtHsU00zeZYaqlFJsqKHELmqDRPg40oLQ=",
        1787398492,
    ),
    "sparkring": (
        "FujitsuPolycom/sparkring",
        "4aa030ad8757302a0a5961df918065987de89f4c",
        "sha256-wCIjo36fKk0/ce/TerZlL1oMVKmlyFBH0P/eWXCi0ds=",
        1787425419,
    ),
    "nccl": (
        "NVIDIA/nccl",
        "73cf112295c33aee2b895f329f592f2a9b4b0f97",
        "sha256-fdiQZweX0jYfGroP0bL5Sfv3+DkCzVBZZLEbPv8aqq8=",
        1780612101,
    ),
    "sglang": (
        "sgl-project/sglang",
        "f80c91a4b97e52e17fbcff088aa6b47b6270f6b9",
        None,
        None,
    ),
    "b12x": (
        "local-inference-lab/b12x",
        "a7d7d29b2ef8869086e0ceaa787321f17544e3c9",
        None,
        None,
    ),
}


def lock() -> dict[str, dict[str, dict[str, object]]]:
    nodes: dict[str, dict[str, dict[str, object]]] = json.loads((ROOT / "flake.lock").read_text())[
        "nodes"
    ]
    return nodes


def poetry_lock() -> dict[str, list[dict[str, list[dict[str, str]]]]]:
    return tomllib.loads((ROOT / "poetry.lock").read_text())


def test_flake_lock_holds_the_pins_and_nothing_else() -> None:
    nodes = lock()
    locked = {name: node["locked"] for name, node in nodes.items() if name != "root"}
    forge = {name: at for name, at in locked.items() if at["type"] != "path"}
    assert forge.keys() == PINS.keys()
    for name, (repository, revision, nar_hash, modified) in PINS.items():
        at = forge[name]
        assert (f"{at['owner']}/{at['repo']}", at["rev"]) == (repository, revision)
        # one that is not known here may have been filled by a machine with network
        assert nar_hash in (None, at.get("narHash"))
        assert modified in (None, at.get("lastModified"))
    assert nodes["root"]["inputs"] == {name: name for name in locked}


def test_flake_inputs_are_the_locked_ones() -> None:
    urls = dict(re.findall(r"github:([\w.-]+/[\w.-]+)/([\w.-]+)", (ROOT / "flake.nix").read_text()))
    original = {
        f"{o['owner']}/{o['repo']}": o.get("ref") or o["rev"]
        for name in PINS
        for o in [lock()[name]["original"]]
    }
    assert urls == original


def test_flake_is_only_wiring() -> None:
    assert len((ROOT / "flake.nix").read_text().splitlines()) <= 110


def test_nix_takes_only_lib_and_packages_of_nixpkgs() -> None:
    uses = {
        use
        for path in NIX_FILES
        for use in re.findall(r"\bnixpkgs\.(?!url)(\w+)", path.read_text())
    }
    text = "".join(path.read_text() for path in NIX_FILES)
    assert uses <= {"legacyPackages", "lib"}
    assert "import nixpkgs" not in text
    assert "<nixpkgs>" not in text


def test_nix_repeats_no_engine_flag() -> None:
    rendered = {
        flag
        for path in (ROOT / "python" / "dsv41" / "engines").glob("*.py")
        for flag in re.findall(r'"(--[a-z][a-z-]+)"', path.read_text())
    }
    assert "--rank" in rendered
    said = {
        (path.name, flag)
        for path in NIX_FILES
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text())
    }
    # of `dsv41 rank exec --plan FILE --rank N`, which units and ssh call
    rendered -= {"--plan", "--rank"}
    assert not {(name, flag) for name, flag in said if flag in rendered}


@pytest.mark.parametrize("path", ALL_NIX_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nix_files_keep_to_the_form(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\t" not in text
    assert not [line for line in lines if line != line.rstrip()]
    # as wide as prose is elsewhere in this tree; a string is not broken
    assert not [line for line in lines if len(line) > 125 and '"' not in line]
    assert not [a for a, b in itertools.pairwise(lines) if not a and not b]


def test_poetry_lock_is_of_this_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    keys = ("requires-python", "dependencies", "optional-dependencies")
    poetry_keys = ("dependencies", "source", "extras", "dev-dependencies", "group")
    poetry = project["tool"]["poetry"]
    content = {
        "project": {k: project["project"][k] for k in keys if k in project["project"]},
        "tool": {"poetry": {k: poetry[k] for k in poetry_keys if k in poetry}},
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    metadata = tomllib.loads((ROOT / "poetry.lock").read_text())["metadata"]
    assert metadata["content-hash"] == digest, "run: poetry lock"


def test_poetry_lock_is_small_and_without_urls() -> None:
    packages = poetry_lock()["package"]
    names = [str(package["name"]) for package in packages]
    assert len(set(names)) == len(names)
    assert not [name for name in names if name in ("torch", "triton") or name.startswith("nvidia")]
    assert not [package["name"] for package in packages if "source" in package]
    assert "http://" not in (ROOT / "poetry.lock").read_text()
    assert "https://" not in (ROOT / "poetry.lock").read_text()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["cp311", "cp312", "cp313", "cp314"])
def test_every_locked_package_has_a_wheel(machine: str, python: str) -> None:
    tags = rf"-(py[0-9.py]+-none|cp3\d+-abi3|{python}-{python})-(any|.*manylinux.*_{machine})\.whl$"
    without = [
        package["name"]
        for package in poetry_lock()["package"]
        if not any(re.search(tags, entry["file"]) for entry in package["files"])
    ]
    assert not without


@pytest.mark.skipif(not NIX.exists(), reason="nix is not installed; scripts/get-nix.sh gets it")
def test_nix_reads_the_lock_and_leaves_it() -> None:
    before = (ROOT / "flake.lock").read_bytes()
    command = [str(NIX), "--extra-experimental-features", "nix-command flakes", "flake", "metadata"]
    said = subprocess.run([*command, "--json", "."], cwd=ROOT, check=True, capture_output=True)
    assert {*PINS, "root"} <= set(json.loads(said.stdout)["locks"]["nodes"])
    assert (ROOT / "flake.lock").read_bytes() == before


@pytest.mark.skipif(not NIX.exists(), reason="nix is not installed; scripts/get-nix.sh gets it")
def test_nix_parses_every_file() -> None:
    parse = NIX.with_name("nix-instantiate")
    subprocess.run([parse, "--parse", *ALL_NIX_FILES], check=True, capture_output=True)


def stand_in(script: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the stand-in as its builder does, with the test's own interpreter."""
    site = sysconfig.get_path("purelib")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": site,
        "PYTHONDONTWRITEBYTECODE": "1",
        "site": site,
        "out": str(cwd / "out"),
        "sitePackages": "site",
        "pythonImportsCheck": "",
        "host_python": sys.executable,
        **variables,
    }
    command = [sys.executable, str(ROOT / "tests" / "nix" / "hostpkgs" / script)]
    return subprocess.run(
        command, cwd=cwd, env=environment, check=False, text=True, capture_output=True
    )


def test_stand_in_links_a_distribution_with_all_that_it_requires(tmp_path: Path) -> None:
    done = stand_in("link_site.py", tmp_path, roots="rich", locked="null")
    assert (done.returncode, done.stderr) == (0, "")
    linked = {path.name for path in (tmp_path / "out" / "site").iterdir()}
    assert {"rich", "pygments", "markdown_it", "mdurl"} <= linked
    assert "pytest" not in linked


def test_stand_in_refuses_a_version_that_is_not_locked(tmp_path: Path) -> None:
    done = stand_in("link_site.py", tmp_path, roots="mdurl", locked='{"mdurl": "0.0.1"}')
    assert done.returncode == 1
    assert "differs from poetry.lock: mdurl" in done.stderr


@pytest.mark.parametrize(
    ("requires", "depends", "says"),
    [
        ("poetry-core", "rich", ""),
        ("poetry-core>=99", "rich", "build requirement 'poetry-core>=99' is not met"),
        ("poetry-core', 'no-such-thing", "rich", "build requirement 'no-such-thing' is not among"),
        ("poetry-core", "no-such-thing", "run-time requirement 'no-such-thing' is not among"),
    ],
)
def test_stand_in_refuses_undeclared_requirements(
    tmp_path: Path, requires: str, depends: str, says: str
) -> None:
    (tmp_path / "tiny.py").write_text("def run():\n    return 0\n")
    (tmp_path / "pyproject.toml").write_text(
        f"""
        build-system = {{ requires = ['{requires}'], build-backend = 'poetry.core.masonry.api' }}
        [project]
        name = 'tiny'
        version = '1'
        dependencies = ['{depends}']
        scripts = {{ tiny = 'tiny:run' }}
        """
    )
    done = stand_in("install_project.py", tmp_path)
    assert says in done.stderr
    assert done.returncode == (1 if says else 0)
    assert says or subprocess.run([tmp_path / "out" / "bin" / "tiny"], check=False).returncode == 0
