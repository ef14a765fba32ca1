#!/bin/sh
# Builds the engine image for arm64 of locked packages, unpacks it and runs its programs by qemu, in namespaces of their own
# without a network. 4.2 GB to fetch, 25 GB of disk, up to an hour on two cores. As root on Debian it installs what it needs.
set -eu
cd "$(dirname "$0")/.."
missing=
for package in qemu-user-static g++-aarch64-linux-gnu; do
  dpkg -s "$package" > /dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || { echo "test-image: install$missing" >&2; exit 2; }
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
scripts/get-nix.sh > /dev/null
plain="tests/test_emulate.py tests/test_image_engine.py tests/test_image_rings.py"
# shellcheck disable=SC2086 # a list of words
case " $* " in *" tests/"*) ;; *) set -- $plain "$@" ;; esac
OMP_NUM_THREADS=1 exec nice .venv/bin/python -m pytest -m "emulated or not emulated" "$@"
