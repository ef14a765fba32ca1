"""The probes: what is asked of a node, and by which command.

A bundle holds `NODE/PROBE.txt`, the bare output of the probe's command, or `NODE/PROBE.err` where
it could not run. The commands need sh, coreutils, find, sed, grep, iproute2 and pciutils, and
change nothing. Words in braces stand for values of the fleet file, quoted for the shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from dsv41.fleet import Fleet
from dsv41.rows import DOWNLOAD_RECORD, INDEX

_NVIDIA_SMI = (
    "nvidia-smi --query-gpu=name,utilization.gpu,clocks.sm,power.draw,memory.used,memory.total,"
    "temperature.gpu --format=csv,noheader"
)
_APPS = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader"
# reading an empty slot of the GID table fails with EINVAL: its value stays empty
_INFINIBAND = r"""cd /sys/class/infiniband || exit 1
for f in */fw_ver */ports/*/state */ports/*/rate */ports/*/active_mtu */ports/*/link_layer \
  */ports/*/gids/* */ports/*/gid_attrs/types/* */ports/*/gid_attrs/ndevs/*; do
  [ -e "$f" ] || continue
  v=; { IFS= read -r v < "$f"; } 2>/dev/null || :
  printf '%s\t%s\n' "$f" "$v"
done"""
# kind `link` is a link that leaves the folder: it dangles inside a container that mounts the folder
_LISTING = r"""[ -d {folder} ] || exit 0
cd {folder} && here=$(pwd -P) && find . \( -type f -o -type l \) | while IFS= read -r f; do
  kind=file; case $f in *.incomplete) kind=incomplete;; esac
  if [ -L "$f" ] && [ ! -e "$f" ]; then kind=broken-link
  elif [ -L "$f" ]; then case $(readlink -f "$f") in "$here"/*) ;; *) kind=link;; esac; fi
  printf '%s\t%s\t%s\n' "${f#./}" "$(stat -L -c %s "$f" 2>/dev/null || echo 0)" "$kind"
done"""
_INDEX = (
    f"tr ',' '\\n' < {{model_dir}}/{INDEX} | "
    r"""sed -n 's/.*: *"\([^"]*\.safetensors\)".*/\1/p' | sort -u"""
)
_SERVICES = r"""command -v systemctl >/dev/null || exit 1
for unit in earlyoom systemd-oomd nohang dgx-anti-oom; do
  pid=$(systemctl show -p MainPID --value "$unit"); args=
  [ "${pid:-0}" -gt 0 ] && args=$(tr '\0' ' ' < "/proc/$pid/cmdline")
  printf '%s\t%s\t%s\n' "$unit" "$(systemctl is-active "$unit")" "$args"
done"""
# the nearest folder that exists, so that the room is known before the first pack
_DISK = r"""up() { d=$1; while [ ! -e "$d" ]; do d=$(dirname "$d"); done; printf '%s' "$d"; }
df -B1 --output=source,fstype,size,avail,target "$(up {model_dir})" "$(up {rows_dir})" """
_KEY_FILE = r"""mode=$(stat -L -c %a {key_file}) || exit 1
printf '%s\t%s\n' "$mode" "$(grep -c '[^[:space:]]' {key_file})" """
_VERSIONS = r"""say() { printf '%s\t%s\n' "$1" "$2"; }
say driver "$(cat /sys/module/nvidia/version 2>/dev/null)"
say bios "$(cat /sys/class/dmi/id/bios_version 2>/dev/null)"
say product "$(cat /sys/class/dmi/id/product_name 2>/dev/null)"
say toolkit "$(nvidia-ctk --version 2>/dev/null | head -n 1)"
say container "$({container} --version 2>/dev/null)" """
# the answers of the peers put their hardware addresses into the table
_NEIGHBORS = r"""for peer in {peers}; do ping -c 1 -W 1 -M do -s 8972 "$peer" >/dev/null 2>&1; done
ip -j neigh"""
_LIBRARY = r"""sum=$(sha256sum {library}) || exit 1
printf '%s\t%s\n' "${sum%% *}" "$(grep -c SWITCHLESS_RING_ONLY {library})" """


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One probe. `root`: without sudo the command sees less, or nothing.

    `added`: not in every bundle; a bundle in which it was never tried is whole all the same. An
    empty command: a person measures it and puts the file there.
    """

    name: str
    command: str
    root: bool = False
    added: bool = False


PROBES = (
    Probe(name="uname", command="uname -srm"),
    Probe(name="cmdline", command="cat /proc/cmdline"),
    Probe(name="meminfo", command="cat /proc/meminfo"),
    Probe(name="swaps", command="cat /proc/swaps"),
    Probe(name="nvidia-smi", command=_NVIDIA_SMI),
    Probe(name="compute-apps", command=_APPS),
    Probe(name="ip-addr", command="ip -j addr"),
    Probe(name="ip-link", command="ip -j link"),
    Probe(name="infiniband", command=_INFINIBAND),
    Probe(name="lspci", command="lspci -vv", root=True),
    Probe(
        name="kernel-log",
        command="journalctl -k -b 0 --no-pager -q -n 20000 || dmesg",
        root=True,
    ),
    Probe(
        name="engine-log",
        command="[ -f {log_file} ] || exit 0; tail -c 16000000 {log_file}",
        root=True,
    ),
    Probe(name="services", command=_SERVICES),
    Probe(name="disk", command=_DISK),
    Probe(name="checkpoint", command=_LISTING.replace("{folder}", "{model_dir}")),
    Probe(name="checkpoint-index", command=_INDEX),
    Probe(name="rows", command=_LISTING.replace("{folder}", "{rows_dir}"), root=True),
    Probe(
        name="image",
        command="{container} images --digests --format '{{.Repository}}:{{.Tag}} {{.Digest}}'",
        root=True,
    ),
    Probe(name="key-file", command=_KEY_FILE, root=True),
    Probe(
        name="kernel-log-previous",
        command="journalctl -k -b -1 --no-pager -q -n 5000 && echo '-- journal' && "
        "journalctl -b -1 --no-pager -q -n 60",
        root=True,
        added=True,
    ),
    Probe(name="processes", command="ps -eo pid=,rss=,comm= --sort=-rss", added=True),
    Probe(name="versions", command=_VERSIONS, added=True),
    Probe(name="revision", command=f"head -n 1 {{model_dir}}/{DOWNLOAD_RECORD}", added=True),
    Probe(name="neighbors", command=_NEIGHBORS, added=True),
    Probe(name="nccl-library", command=_LIBRARY, added=True),
    Probe(name="bandwidth", command="", added=True),
)
ADDED = frozenset(probe.name for probe in PROBES if probe.added)
# a probe that needs a value which not every node has
_NEEDS = {"key-file": "key_file", "nccl-library": "library", "neighbors": "peers"}


def commands(fleet: Fleet, rank: int) -> Mapping[str, str]:
    """The command of every probe that makes sense on a node, by its name."""
    values = _values(fleet, rank)
    sudo = fleet.nodes[rank].sudo
    asked: dict[str, str] = {}
    for probe in PROBES:
        if not probe.command or not values.get(_NEEDS.get(probe.name, ""), "needed"):
            continue
        command = _fill(probe.command, values)
        asked[probe.name] = (
            f"sudo -n sh -c {shlex.quote(command)}" if sudo and probe.root else command
        )
    return asked


def _fill(command: str, values: Mapping[str, str]) -> str:
    """The command with its words in braces replaced; other braces are the shell's own."""
    return re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), command)


def _values(fleet: Fleet, rank: int) -> dict[str, str]:
    """What the words in braces stand for; empty where the fleet has no such value."""
    node = fleet.nodes[rank]
    networks = {link.network for link in node.links}
    peers = [
        link.address.split("/")[0]
        for other, peer in enumerate(fleet.nodes)
        for link in peer.links
        if other != rank and link.network in networks
    ]
    key_file = fleet.api_key_file if rank == 0 else None
    plain = {
        "model_dir": node.model_dir,
        "rows_dir": node.rows_dir,
        "log_file": f"{fleet.run_dir}/rank{rank}.log",
        "key_file": key_file,
        "container": fleet.container_of(rank),
        "library": node.nccl_library,
    }
    quoted = {name: shlex.quote(value) if value else "" for name, value in plain.items()}
    return {**quoted, "peers": " ".join(map(shlex.quote, peers))}
