#!/bin/sh
# Builds image-local of locked packages and runs it under podman. As root on Debian it installs what it needs.
# podman runs with this machine's own containers.conf.
set -eu
cd "$(dirname "$0")/.."
missing=
for package in podman runc skopeo umoci; do
  dpkg -s "$package" > /dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || { echo "test-image-local: install$missing" >&2; exit 2; }
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
scripts/get-nix.sh > /dev/null
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest -m images tests/test_build_podman.py tests/test_foreground_podman.py tests/test_images_local.py \
  tests/test_images_engine_tiny.py "$@"
