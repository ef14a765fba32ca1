"""The network of the namespace fleet: a switch with the desk and every machine on it, and a fabric.

The management network is a bridge in a namespace of its own, one port a machine; the fabric is a
cable a pair of machines (a triangle) or one more bridge. A cable is a veth pair. Devices end with
the namespace that either end is in.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.machines import Machine, run

MANAGEMENT = "enP7s7"  # as the management port of a Spark is named
FABRIC = ("enp1s0f0np0", "enp1s0f1np1")
BRIDGES = {"management": "br0", "fabric": "br1"}


@dataclass(kw_only=True)
class Network:
    """Cables between machines; the management network is 10.201.`subnet`.0/24."""

    switch: Machine
    subnet: int

    def address(self, number: int) -> str:
        """An address of the management network."""
        return f"10.201.{self.subnet}.{number}"

    def power(self) -> None:
        """Make the bridges and put this machine on the management network."""
        for bridge in BRIDGES.values():
            self.switch.run("ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0")
            self.switch.run("ip", "link", "set", bridge, "up")
        desk = self._desk
        run("ip", "link", "add", desk, "type", "veth", "peer", "desk", "netns", self._switch)
        self._plug("desk", "management")
        run("ip", "address", "add", f"{self.address(1)}/24", "dev", desk)
        run("ip", "link", "set", desk, "up")

    def unplug(self) -> None:
        """Take this machine off; the kernel ends other devices with their namespaces."""
        subprocess.run(["ip", "link", "delete", self._desk], check=False, capture_output=True)

    def leave(self, machine: Machine) -> None:
        """Take a machine off; its devices would go with it, but only a moment after its end."""
        self.switch.status("ip", "link", "delete", _port_name(machine, "management"))

    def join(self, machine: Machine) -> None:
        """Connect a machine to the management network."""
        self._port(machine, MANAGEMENT, f"{machine.address}/24", "management")

    def triangle(self, machines: Sequence[Machine]) -> list[tuple[str, str]]:
        """A cable a pair: the fabric addresses of each machine's two ports."""
        found: dict[str, list[str]] = {machine.name: [] for machine in machines}
        for place, (one, other) in enumerate(itertools.combinations(machines, 2)):
            ends = []
            for end, machine in enumerate((one, other)):
                device = FABRIC[len(found[machine.name])]
                found[machine.name].append(f"10.202.{place}.{end + 1}/24")
                ends.append((machine, device))
            (first, near), (second, far) = ends
            peer = ["peer", far, "netns", str(second.pid)]
            run("ip", "link", "add", near, "netns", str(first.pid), "type", "veth", *peer)
            for machine, device in ends:
                _up(machine, device, found[machine.name][-1])
        return [(first, second) for first, second in found.values()]

    def switched(self, machines: Sequence[Machine]) -> list[tuple[str]]:
        """All machines on one fabric switch: each one's address."""
        found = [(f"10.202.9.{place + 11}/24",) for place in range(len(machines))]
        for machine, (address,) in zip(machines, found, strict=True):
            self._port(machine, FABRIC[0], address, "fabric")
        return found

    def pull(self, machine: Machine) -> None:
        """Take the management cable of a machine out of the switch."""
        self.switch.run("ip", "link", "set", _port_name(machine, "management"), "down")

    def plug(self, machine: Machine) -> None:
        """Put it back."""
        self.switch.run("ip", "link", "set", _port_name(machine, "management"), "up")

    @property
    def _desk(self) -> str:
        return f"dsv41f{self.subnet}"

    @property
    def _switch(self) -> str:
        return str(self.switch.pid)

    def _port(self, machine: Machine, device: str, address: str, network: str) -> None:
        port = _port_name(machine, network)
        peer = ["peer", port, "netns", self._switch]
        # a machine keeps its hardware address when it boots again, so neighbors still know it
        octets = address.partition("/")[0].split(".")
        card = ["address", ":".join(["02", "dd", *(f"{int(octet):02x}" for octet in octets)])]
        run("ip", "link", "add", device, *card, "netns", str(machine.pid), "type", "veth", *peer)
        self._plug(port, network)
        _up(machine, device, address)

    def _plug(self, port: str, network: str) -> None:
        self.switch.run("ip", "link", "set", port, "master", BRIDGES[network], "up")


def _port_name(machine: Machine, network: str) -> str:
    return f"{machine.name}-{network[0]}"


def _up(machine: Machine, device: str, address: str) -> None:
    machine.run("ip", "address", "add", address, "dev", device)
    machine.run("ip", "link", "set", device, "up")
