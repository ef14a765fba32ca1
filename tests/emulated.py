"""Images for arm64, unpacked into a root, whose programs run there by qemu (make test-image)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nix_images import CONFIG, IMAGES, NIX, ROOT, blob, manifest_of, mirror

SITE = "opt/dsv41/lib/python3.11/site-packages"
TOOL = ROOT / "nix" / "images" / "tools" / "emulate.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """A root, and what the image's config gives to its programs."""

    root: Path
    env: dict[str, str]
    labels: dict[str, str]
    # layer -> bytes, bottom to top
    layers: dict[str, int]


def fetched(attribute: str, *words: str) -> Path:
    """An image of the flake, built of packages that are fetched where the store lacks them.

    `words` are more options for nix, such as an argument of the expression.
    """
    environment = {
        **os.environ,
        "NIX_CONFIG": CONFIG,
        "DSV41_SITE": sysconfig.get_path("purelib"),
        "DSV41_DEB_MIRROR": os.environ.get("DSV41_DEB_MIRROR") or mirror(),
    }
    build = ["build", "--impure", "--no-link", "--print-out-paths", "--file", str(IMAGES)]
    done = subprocess.run(
        [str(NIX), *build, *words, attribute],
        env=environment,
        check=False,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Path(done.stdout.strip())


def config_of(layout: Path) -> dict[str, Any]:
    data = blob(layout, manifest_of(layout)["config"]["digest"]).read_text()
    found: dict[str, Any] = json.loads(data)
    return found


def unpack(layout: Path, root: Path) -> None:
    """All layers on each other, by GNU tar; a layer that hides files of lower ones is refused."""
    if root.exists():
        shutil.rmtree(root)
    root.mkdir()
    for layer in manifest_of(layout)["layers"]:
        path = blob(layout, layer["digest"])
        subprocess.run(["tar", "-xf", path, "-C", root, "--numeric-owner"], check=True)
    hidden = list(root.rglob(".wh.*"))
    assert not hidden, hidden


def tars(layout: Path) -> dict[str, Path]:
    """Layer -> its tar, bottom to top."""
    steps = [step["created_by"] for step in config_of(layout)["history"]]
    files = [blob(layout, layer["digest"]) for layer in manifest_of(layout)["layers"]]
    return {step.removeprefix("dsv41: "): file for step, file in zip(steps, files, strict=True)}


def only(name: str, layout: Path, folder: Path) -> Path:
    """The files of one layer, alone in `folder`."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    subprocess.run(["tar", "-xf", tars(layout)[name], "-C", folder], check=True)
    return folder


def described(layout: Path, root: Path) -> Unpacked:
    """An image whose layers are, or will be, in `root`."""
    config = config_of(layout)
    return Unpacked(
        root=root,
        env=dict(pair.split("=", 1) for pair in config["config"]["Env"]),
        labels=config["config"]["Labels"],
        layers={name: file.stat().st_size for name, file in tars(layout).items()},
    )


def emulated(
    image: Unpacked,
    *words: str,
    env: Mapping[str, str] | None = None,
    binds: tuple[str, ...] = (),
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """A program of the image, with the image's environment and `env` over it."""
    command = [sys.executable, str(TOOL), str(image.root)]
    command += [f"--bind={bind}" for bind in binds]
    return subprocess.run(
        [*command, "--", *words],
        env={**image.env, **(env or {})},
        check=False,
        text=True,
        capture_output=True,
        timeout=seconds,
    )


def undefined(library: Path) -> set[str]:
    """Functions of the driver (cuX...) that an arm64 library calls."""
    command = ["aarch64-linux-gnu-nm", "-D", "--undefined-only", str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in said.splitlines()}
    return {name for name in names if re.fullmatch(r"cu[A-Z]\w+", name)}


def stub_of_the_driver(image: Unpacked, folder: Path) -> None:
    """A libcuda.so.1 for these tests alone, whose functions all answer 100, CUDA_ERROR_NO_DEVICE.

    On a node the container toolkit brings the driver's own.
    """
    site = image.root / SITE
    named = [site / name for name in ("sgl_kernel", "flash_mla", "deep_gemm", "vllm")]
    names = {n for place in named for library in place.rglob("*.so") for n in undefined(library)}
    assert names
    text = "".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names))
    words = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-"]
    command = ["aarch64-linux-gnu-gcc", *words, "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True, input=text, text=True)


def digest(tar: Path, name: str) -> str | None:
    """SHA-256 of a member of a layer; None where it has none of that name."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name == name:
                content = archive.extractfile(member)
                assert content
                return hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
    return None


def holders(layout: Path, file: str) -> dict[str, str]:
    """Layers that have a file of site-packages, bottom to top, each with its SHA-256."""
    found = {name: digest(tar, f"{SITE}/{file}") for name, tar in tars(layout).items()}
    return {name: sha256 for name, sha256 in found.items() if sha256}
