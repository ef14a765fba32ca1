#!/bin/sh
# Runs the tests of the namespace fleet: three and four machines made of namespaces, each with its own sshd and
# podman store, their ranks in containers of image-local. As root on Debian it installs what it needs.
# test-fleet.sh fleet | fleet_load [words for pytest]
set -eu
cd "$(dirname "$0")/.."
kind=$1
shift
[ "$(id -u)" = 0 ] || { echo "test-fleet: namespaces, mounts and network devices need root" >&2; exit 2; }
missing=
for package in podman runc skopeo openssh-server openssh-client iproute2 util-linux procps; do
  dpkg -s "$package" > /dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
scripts/get-nix.sh > /dev/null
# -rP: the load test prints how its requests ended
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest -rP -m "$kind" tests/fleet tests/test_control.py "$@"
