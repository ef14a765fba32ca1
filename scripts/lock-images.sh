#!/bin/sh
# Makes the package locks of the images again: image-local's for both architectures, the recipe's wheels.
# Needs a network, uv on PATH, and a place that PIP_FIND_LINKS names for the torch 2.13.0 for CPUs.
set -eu
cd "$(dirname "$0")/.."
images=nix/images work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python - "$work" <<'PYTHON'
import sys, tomllib
from pathlib import Path
work = Path(sys.argv[1])
local = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["local"]
# the versions that the tests run with; what torch brings along is not in poetry.lock
packages = tomllib.loads(Path("poetry.lock").read_text())["package"]
(work / "constraints").write_text("".join(f"{p['name']}=={p['version']}\n" for p in packages))
# 2.10.0 is the newest release whose arm64 wheel on the public index is for CPUs
for arch, torch in (("amd64", "2.13.0+cpu"), ("arm64", "2.10.0")):
    (work / arch).write_text("\n".join([*local, f"torch=={torch}"]) + "\n")
PYTHON
for arch in amd64 arm64; do
  python3 $images/tools/lock_packages.py debs $images/local/debs.txt $arch > "$work/debs"
  python3 $images/tools/lock_packages.py wheels "$work/$arch" $arch \
    --constraints "$work/constraints" > "$work/wheels"
  cp "$work/debs" $images/local/debs-$arch.json
  cp "$work/wheels" $images/local/wheels-$arch.json
done
# the two of the recipe's image, beside what its base has: Python 3.12 on Ubuntu 24.04
printf '%s\n' 'sglang-kernel==0.4.7' 'sgl-deep-gemm==0.2.0' > "$work/kernels"
python3 $images/tools/lock_packages.py wheels "$work/kernels" arm64 --no-deps --python 3.12 --glibc 2.39 \
  > "$work/wheels"
cp "$work/wheels" $images/recipe/wheels-arm64.json
echo "lock-images: now build the layers and list them: make image-layers" >&2
