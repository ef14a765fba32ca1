"""Bundles of healthy fleets, made probe by probe; tests change one thing and look again."""

import json
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from dsv41.diagnose import Expect
from dsv41.doctor import Bundle, Capture
from dsv41.doctor.check import Case
from dsv41.doctor.packed import sizes
from dsv41.fleet import Fleet, parse

GIB = 1 << 30
SHARDS = [f"model-{n:05}-of-00048.safetensors" for n in range(1, 49)]
# the four functions of the two ConnectX-7 cages: DGX OS name, NixOS name, interface, PCI address
FUNCTIONS = (
    ("rocep1s0f0", "mlx5_0", "enp1s0f0np0", "0000:01:00.0"),
    ("rocep1s0f1", "mlx5_1", "enp1s0f1np1", "0000:01:00.1"),
    ("roceP2p1s0f0", "mlx5_2", "enP2p1s0f0np0", "0002:01:00.0"),
    ("roceP2p1s0f1", "mlx5_3", "enP2p1s0f1np1", "0002:01:00.1"),
)
MEMINFO = """\
MemTotal:       127600748 kB
MemFree:        120586240 kB
MemAvailable:   121634816 kB
Buffers:          208816 kB
Cached:          1757420 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
CmaTotal:         131072 kB
CmaFree:          116736 kB
HugePages_Total:       0
"""
SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swapfile file\t\t16777212\t0\t-2\n"
KERNEL_LOG = """\
Sep 11 20:01:02 spark1 kernel: Linux version 6.17.0-1032-nvidia (buildd@bos03-arm64-050)
Sep 11 20:01:09 spark1 kernel: mlx5_core 0000:01:00.0: Detected insufficient power (27W).
Sep 11 20:01:12 spark1 kernel: mt7925e 0009:01:00.0: HW/SW Version: 0x8a108a10, Build Time: 2025
Sep 11 20:03:12 spark1 kernel: systemd[1]: Started earlyoom - no, only named so.
"""
JOURNAL = "-- journal\nSep 11 19:58:01 spark1 systemd-journald[512]: Journal stopped\n"
LSPCI = """\
000f:01:00.0 VGA compatible controller: NVIDIA Corporation Device 2e12 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x1 (downgraded)
"""
FUNCTION = """\
{pci} Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tSubsystem: Mellanox Technologies Device 0001
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x4, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x4
"""
DIGEST = "sha256:" + "5a" * 32


@dataclass(frozen=True, kw_only=True)
class Site:
    """A fleet, what its profile promises, and how its operating system calls things."""

    fleet: Fleet
    expect: Expect
    nixos: bool = False


def _node(rank: int, hca: list[str], fabric: list[str]) -> str:
    return f"""
[[nodes]]
name = "spark{rank + 1}"
ssh = "user@10.0.0.{rank + 1}"
address = "10.0.0.{rank + 1}"
hca = {hca}
fabric = {fabric}
socket_ifname = "enP7s7"
model_dir = "/models/DeepSeek-V4.1-Flash"
rows_dir = "/var/lib/dsv41/rows"
"""


def fleet_text(topology: str, *, nixos: bool = False) -> str:
    """The fleets of the recipes: a triangle, a switch with both twins of a cage, a ring."""
    ends = {
        "triangle": [
            ["10.0.22.1/24", "10.0.23.1/24"],
            ["10.0.22.2/24", "10.0.33.2/24"],
            ["10.0.23.3/24", "10.0.33.3/24"],
        ],
        "switch": [[f"10.0.40.{r + 1}/24", f"10.0.41.{r + 1}/24"] for r in range(4)],
        "ring": [[f"10.0.{50 + r}.10/24", f"10.0.{50 + (r - 1) % 4}.11/24"] for r in range(4)],
    }[topology]
    places = (0, 2) if topology == "switch" else (0, 1)
    hca = [FUNCTIONS[place][1 if nixos else 0] for place in places]
    text = f'topology = "{topology}"\napi_key_file = "/etc/dsv41/keys"\n'
    return text + "".join(_node(r, hca, e) for r, e in enumerate(ends))


def fleet(topology: str, *, nixos: bool = False) -> Fleet:
    return parse(fleet_text(topology, nixos=nixos), where="fleet.toml")


def site(topology: str, *, nixos: bool = False) -> Site:
    found = fleet(topology, nixos=nixos)
    names = {"triangle": "tp3", "switch": "tp4", "ring": "tp4-ring"}
    expect = Expect(
        profile=names[topology],
        engine="sglang",
        tp=len(found.nodes),
        image="registry.example/dsv41-sglang:0.5.23",
        image_digest=DIGEST,
        headroom_bytes=6 * GIB,
        engine_bytes=111 * GIB,
        needs_ring=topology == "ring",
    )
    return Site(fleet=found, expect=expect, nixos=nixos)


def mac(rank: int, place: int) -> str:
    return f"4c:bb:47:00:{rank:02x}:{place:02x}"


def hca_name(site: Site, place: int) -> str:
    return FUNCTIONS[place][1 if site.nixos else 0]


def _addresses(site: Site, rank: int) -> dict[str, str]:
    """Interface -> planned address."""
    devices = {hca_name(site, place): FUNCTIONS[place][2] for place in range(4)}
    return {devices[link.hca]: link.address for link in site.fleet.nodes[rank].links}


def interfaces(site: Site, rank: int) -> list[dict[str, Any]]:
    """What `ip -j addr` prints; `ip -j link` is the same without the addresses."""
    planned = _addresses(site, rank)
    rows = [_interface("lo", "00:00:00:00:00:00", 65536, "127.0.0.1/8", state="UNKNOWN")]
    rows.append(_interface("enP7s7", mac(rank, 9), 1500, f"10.0.0.{rank + 1}/24"))
    for place, (_, _, name, _) in enumerate(FUNCTIONS):
        rows.append(_interface(name, mac(rank, place), 9000, planned.get(name)))
    rows.append(_interface("wlP9s9", mac(rank, 10), 1500, None, state="DOWN"))
    rows.append(_interface("docker0", mac(rank, 11), 1500, "172.17.0.1/16", state="DOWN"))
    return rows


def _interface(
    name: str, hardware: str, mtu: int, address: str | None, *, state: str = "UP"
) -> dict[str, Any]:
    row = {"ifname": name, "address": hardware, "mtu": mtu, "operstate": state, "addr_info": []}
    if address:
        ip = IPv4Interface(address)
        info = {"family": "inet", "local": str(ip.ip), "prefixlen": ip.network.prefixlen}
        row["addr_info"] = [info, {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]
    return row


def infiniband(site: Site, rank: int) -> str:
    """The sysfs tree of the four functions, holes in the GID table included."""
    planned = _addresses(site, rank)
    lines = []
    for place, (_, _, device, _) in enumerate(FUNCTIONS):
        hca = hca_name(site, place)
        port = f"{hca}/ports/1"
        lines += [f"{hca}/fw_ver\t28.45.4028", f"{port}/state\t4: ACTIVE"]
        lines += [f"{port}/rate\t200 Gb/sec (2X NDR)", f"{port}/link_layer\tEthernet"]
        if not site.nixos:
            lines.append(f"{port}/active_mtu\t4096 (5)")
        for index, (value, kind) in enumerate(gids(planned.get(device))):
            lines.append(f"{port}/gids/{index}\t{value}")
            lines.append(f"{port}/gid_attrs/types/{index}\t{kind}")
            lines.append(f"{port}/gid_attrs/ndevs/{index}\t{device if kind else ''}")
    return "\n".join(lines) + "\n"


def gids(address: str | None) -> list[tuple[str, str]]:
    link_local = "fe80:0000:0000:0000:4ebb:47ff:fe00:0001"
    table = [(link_local, "IB/RoCE v1"), (link_local, "RoCE v2")]
    if address:
        value = f"0000:0000:0000:0000:0000:ffff:{IPv4Interface(address).ip.packed.hex(':', 2)}"
        table += [(value, "IB/RoCE v1"), (value, "RoCE v2")]
    return [*table, *[("0000:0000:0000:0000:0000:0000:0000:0000", "")] * 3]


def checkpoint() -> str:
    sizes = {"config.json": 4321, "model.safetensors.index.json": 9_876_543}
    sizes |= {"tokenizer.json": 7_847_602, "encoding/encoding.py": 31_337}
    sizes |= dict.fromkeys(SHARDS, 10_631_000_000)
    return "".join(f"{name}\t{size}\tfile\n" for name, size in sizes.items())


def rows(site: Site, rank: int) -> str:
    case = Case(
        fleet=site.fleet, expect=site.expect, rank=rank, capture=Capture(texts={}, errors={})
    )
    return "".join(f"{name}\t{size}\tfile\n" for name, size in sizes(case).items())


def neighbors(site: Site, rank: int) -> list[dict[str, Any]]:
    """Every planned peer answers on the planned interface with its own hardware address."""
    here = _addresses(site, rank)
    found = []
    for device, address in here.items():
        network = IPv4Interface(address).network
        for peer in range(len(site.fleet.nodes)):
            for theirs, there in _addresses(site, peer).items():
                if peer != rank and IPv4Interface(there).network == network:
                    place = [f[2] for f in FUNCTIONS].index(theirs)
                    row = {"dst": there.split("/")[0], "dev": device, "lladdr": mac(peer, place)}
                    found.append({**row, "state": ["REACHABLE"]})
    return found


def node(site: Site, rank: int) -> dict[str, str]:
    """Every probe of one healthy node."""
    link = interfaces(site, rank)
    bare = [{**row, "addr_info": None} for row in link]
    root = "/dev/nvme0n1p2 ext4 3838880071680 2838880071680"
    release = "6.17.13" if site.nixos else "6.17.0-1032-nvidia"
    texts = {
        "uname": f"Linux {release} aarch64\n",
        "cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet console=tty1\n",
        "meminfo": MEMINFO,
        "swaps": SWAPS,
        "nvidia-smi": "NVIDIA GB10, 0 %, 208 MHz, 4.50 W, [N/A], [N/A], 38\n",
        "compute-apps": "",
        "ip-addr": json.dumps(link),
        "ip-link": json.dumps(bare),
        "infiniband": infiniband(site, rank),
        "lspci": LSPCI + "\n".join(FUNCTION.format(pci=pci) for *_, pci in FUNCTIONS),
        "kernel-log": KERNEL_LOG,
        "engine-log": "",
        "services": "earlyoom\tinactive\t\nsystemd-oomd\tactive\t/usr/lib/systemd/systemd-oomd\n",
        "disk": "Filesystem Type 1B-blocks Avail Mounted on\n" + f"{root} /\n" * 2,
        "checkpoint": checkpoint(),
        "checkpoint-index": "\n".join(SHARDS) + "\n",
        "rows": rows(site, rank),
        "image": f"registry.example/dsv41-sglang:0.5.23 {DIGEST}\nbusybox:1 sha256:{rank:064x}\n",
        "kernel-log-previous": KERNEL_LOG + JOURNAL,
        "processes": "1 14000 systemd\n900 210000 containerd\n",
        "versions": "driver\t580.173.02\nbios\t0ACUM027\nproduct\tNVIDIA DGX Spark\n",
        "revision": "fb2764a5cf321eaa5070ca8f9e892818f477c16d\n",
        "neighbors": json.dumps(neighbors(site, rank)),
        "nccl-library": f"{'7b' * 32}\t2\n",
        "bandwidth": "".join(f"{link.hca}\t109.1\n" for link in site.fleet.nodes[rank].links),
    }
    return texts | ({"key-file": "600\t2\n"} if rank == 0 else {})


def healthy(site: Site) -> dict[str, dict[str, str]]:
    """Every probe of every node, by node name."""
    return {found.name: node(site, rank) for rank, found in enumerate(site.fleet.nodes)}


def bundle(texts: dict[str, dict[str, str]]) -> Bundle:
    return Bundle(captures={name: Capture(texts=t, errors={}) for name, t in texts.items()})
