"""Make the package locks of an image; a developer's tool, which needs a network.

    python lock_packages.py debs NAMES.txt ARCH > debs-ARCH.json
    python lock_packages.py wheels REQUIREMENTS.txt ARCH > wheels-ARCH.json
        [--constraints FILE] [--no-deps] [--python 3.11] [--glibc 2.36] [--until TIME]
        [--contents FILE]

ARCH is amd64 or arm64, whatever this machine is. `debs` resolves with this machine's own apt
against an empty system; `wheels` with uv (pip cannot resolve for another machine), from the package
index of this machine's configuration and PIP_FIND_LINKS. The locks name files, sizes and SHA-256,
and no address: who builds takes them from where that machine takes packages. Lists may have
comments. `--until` looks away from what was uploaded later, so that the same lock is made again;
`--contents` writes what wheel_contents reads of the wheels.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import wheel_contents

SUITE = "bookworm"  # Debian 12: Python 3.11, glibc 2.36
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
MINIMAL = ("-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root")


def debs(names: list[str], arch: str) -> dict[str, Any]:
    """The packages and all that they depend on, from an apt that knows of no installed package."""
    with tempfile.TemporaryDirectory() as folder:
        apt = _apt(Path(folder), arch)
        subprocess.run([*apt, "update"], check=True)
        chosen = _output([*apt, "--yes", "--print-uris", "install", *names])
        words = [line.split()[1] for line in chosen.splitlines()]
        wanted = [f"{n}={v}" for n, v in (w.removesuffix(".deb").split("_")[:2] for w in words)]
        wanted = [urllib.parse.unquote(one) for one in wanted]
        shown = _output(["apt-cache", *apt[1:], "show", "--no-all-versions", *wanted])
        (release,) = (Path(folder) / "lists").glob("*_InRelease")
        (date,) = re.findall(r"^Date: (.*)$", release.read_text(), re.MULTILINE)
    return {
        "suite": SUITE,
        "arch": arch,
        # when the archive was as it is locked here; names its dated snapshot
        "snapshot": parsedate_to_datetime(date).strftime("%Y%m%dT%H%M%SZ"),
        "packages": sorted((_deb(s) for s in shown.split("\n\n") if s), key=lambda d: d["name"]),
    }


def _apt(folder: Path, arch: str) -> list[str]:
    """apt-get with a state of its own, and the host's own package source."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    known = _output(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()
    mirror = next(uri for uri in known if uri.rstrip("/").endswith("/debian"))
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources").write_text(f"deb [signed-by={keys}] {mirror} {SUITE} main\n")
    settings = {
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Architecture": arch,
        "APT::Architectures": arch,
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    return ["apt-get", "-qq", *MINIMAL, *options]


def _deb(paragraph: str) -> dict[str, Any]:
    fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
    return {
        "name": fields["Package"],
        "version": fields["Version"],
        "file": fields["Filename"],
        "sha256": fields["SHA256"],
        "size": int(fields["Size"]),
    }


def wheels(options: argparse.Namespace) -> dict[str, Any]:
    """The requirements, and unless `no_deps` all that they require, as wheels alone."""
    platform = f"{MACHINES[options.arch]}-manylinux_{options.glibc.replace('.', '_')}"
    command = ["uv", "pip", "compile", "--quiet", "--no-config", "--only-binary", ":all:"]
    command += ["--python-version", options.python, "--python-platform", platform]
    command += ["--format", "pylock.toml"]
    for links in os.environ.get("PIP_FIND_LINKS", "").split():
        command += ["--find-links", links]
    if options.constraints is not None:
        command += ["--constraints", str(options.constraints)]
    if options.no_deps:
        command += ["--no-deps"]
    if options.until is not None:
        command += ["--exclude-newer", options.until]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.image.toml"
        command += ["-o", str(out), str(options.listed)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lock = tomllib.loads(out.read_text())
    chosen = [(package, best(package["wheels"])) for package in lock["packages"]]
    made = [_wheel(package, wheel) for package, wheel in chosen]
    if options.contents is not None:
        listed = re.findall(r"^[\w.-]+", options.listed.read_text(), re.MULTILINE)
        addresses = {
            entry["file"]: wheel["url"] for entry, (_, wheel) in zip(made, chosen, strict=True)
        }
        found = wheel_contents.of(made, addresses, roots=listed)
        options.contents.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    until = {} if options.until is None else {"until": options.until}
    head = {"python": options.python, "glibc": options.glibc, "arch": options.arch, **until}
    return {**head, "wheels": made}


def best(wheels: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the wheels that uv says fit, the one that pip would take: the most specific one."""
    return max(wheels, key=lambda wheel: _specific(wheel["url"].rpartition("/")[2]))


def _specific(file: str) -> tuple[bool, bool, bool, int, int]:
    """How specific the tags are: of the interpreter's own ABI, of a stable one, of a platform."""
    python, abi, platform = file.removesuffix(".whl").split("-")[-3:]
    minors = [int(minor or "0") for minor in re.findall(r"(?:cp|py)\d(\d*)", python)]
    glibcs = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", platform)]
    own, stable = abi.startswith("cp"), abi == "abi3"
    return own, stable, platform != "any", max(minors), max(glibcs, default=17)


def _wheel(package: dict[str, Any], wheel: dict[str, Any]) -> dict[str, Any]:
    url = urllib.parse.urlsplit(wheel["url"])
    path = Path(urllib.parse.unquote(url.path))
    return {
        "name": package["name"],
        "version": package["version"],
        "file": path.name,
        "sha256": wheel["hashes"]["sha256"],
        "size": path.stat().st_size if url.scheme == "file" else wheel["size"],
    }


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("debs", "wheels"))
    parser.add_argument("listed", type=Path)
    parser.add_argument("arch", choices=MACHINES)
    parser.add_argument("--constraints", type=Path)
    parser.add_argument("--no-deps", action="store_true")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--glibc", default="2.36")
    parser.add_argument("--until", metavar="TIME")
    parser.add_argument("--contents", type=Path)
    return parser.parse_args()


def main() -> int:
    """Print the lock."""
    options = _options()
    if options.what == "debs":
        names = re.sub(r"#.*", "", options.listed.read_text())
        made = debs(names.split(), options.arch)
    else:
        made = wheels(options)
    (kind,) = (key for key, value in made.items() if isinstance(value, list))
    entries = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in made.pop(kind))
    head = json.dumps(made, ensure_ascii=False)[:-1]
    sys.stdout.write(f'{head}, "{kind}": [\n{entries}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
