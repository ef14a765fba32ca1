#!/bin/sh
# Two small machines with Debian's own kernel, one exporting to the other over NFS by `dsv41 share`. As root on Debian it
# installs what it needs (60 MB), and makes one disk for both machines below .cache/nfs: 1 minute, 250 MB of packages.
set -eu
cd "$(dirname "$0")/.."
missing=
for package in qemu-system-x86 qemu-utils mmdebstrap e2fsprogs openssh-client; do
  dpkg -s "$package" > /dev/null 2>&1 || missing="$missing $package"
done
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || { echo "test-nfs: install$missing" >&2; exit 2; }
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
made=$PWD/.cache/nfs
stamp=$(sha256sum scripts/test-nfs.sh scripts/nfs-machine.sh | sha256sum | cut -c 1-16)
if [ ! -e "$made/$stamp" ]; then
  rm -rf "$made"
  mkdir -p "$made"
  ssh-keygen -q -t ed25519 -N '' -f "$made/key"
# shellcheck disable=SC2016 # the hooks expand $1 themselves
  mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=systemd-sysv,udev,dbus,linux-image-amd64,initramfs-tools,nfs-kernel-server,openssh-server,python3,iproute2,sudo,kmod \
    --setup-hook='scripts/nfs-machine.sh before "$1"' \
    --customize-hook="scripts/nfs-machine.sh after \"\$1\" '$made'" \
    bookworm "$made/root"
  mkfs.ext4 -q -d "$made/root" "$made/disk.img" 1600M
  rm -rf "$made/root"
  touch "$made/$stamp"
fi
exec .venv/bin/python -m pytest -m nfs tests/test_nfs.py "$@"
