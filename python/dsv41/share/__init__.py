"""One copy of the checkpoint for all nodes: exported by one over NFS, mounted by the others.

`plan` compares what every node has with what the fleet asks for and gives the changes that are
left, none when all is as it should be; `carry_out` makes them; `confirm` reads a file through each
mount. On NixOS the module does all this, declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed, Unsafe
from dsv41.share import texts
from dsv41.share.exporter import rewritten
from dsv41.share.state import State, read
from dsv41.steps import Step

if TYPE_CHECKING:
    from dsv41.fleet import Fleet
    from dsv41.host.reach import Host

__all__ = ["Change", "State", "carry_out", "confirm", "leftovers", "plan", "read", "removal"]

_SECONDS = 120.0  # starting a server, mounting: systemd gives up after 60 to 90
_ENABLED = ("active", "enabled")
_NEEDS = {
    "systemctl": "systemd",
    "exportfs": "apt-get install nfs-kernel-server",
    "mount.nfs4": "apt-get install nfs-common",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing to do on a node: write `text` to `file`, or run `command`, given `text` if any."""

    id: str
    node: str
    command: tuple[str, ...] = ()
    file: str = ""
    text: str = ""

    @property
    def step(self) -> Step:
        """As a Plan has it."""
        words = self.command or ("put", self.file)
        return Step(
            id=f"{self.id}-{self.node}", node=self.node, effect="changes hosts", command=words
        )


def plan(fleet: Fleet, states: Mapping[str, State], *, rewrite: bool = False) -> list[Change]:
    """The changes that are left, server first; `rewrite` allows those in another exporter.

    Raises CheckFailed D463 on NixOS, D464 when something is missing on a node, D465 when a node
    mounts or exports something else; Unsafe D466 when a mount would hide files, D467 when another
    launcher's exporter would be rewritten and that is not allowed.
    """
    server = texts.server_of(fleet)
    if server is None:
        return []
    for one in states.values():
        _refuse_nixos(one)
    changes: list[Change] = []
    for rank in (server, *(rank for rank in range(len(fleet.nodes)) if rank != server)):
        state = states.get(fleet.nodes[rank].name)
        if state is None:
            continue  # only some of the nodes were asked for
        if rank == server:
            changes += _of_server(fleet, server, state, rewrite=rewrite)
        else:
            changes += _of_client(fleet, rank, server, state)
    return changes


def _refuse_nixos(state: State) -> None:
    if state.nixos:
        raise CheckFailed(
            "D463",
            f"{state.node} runs NixOS, whose exports and mounts are declared.",
            fix="set services.dsv41.weights.nfs.server, .serverNode and .clients, then "
            "nixos-rebuild switch (docs/howto/nixos.md)",
        )


def _require(state: State, *tools: str) -> None:
    if state.uid:
        raise CheckFailed(
            "D464",
            f"{state.node}: exports and mounts are root's, and its user is not root.",
            fix=f"set sudo = true for {state.node} in the fleet file",
        )
    for tool in tools:
        if tool not in state.tools:
            raise CheckFailed(
                "D464", f"{state.node} has no {tool}.", fix=f"on {state.node}: {_NEEDS[tool]}"
            )


def _of_server(fleet: Fleet, server: int, state: State, *, rewrite: bool) -> Iterator[Change]:
    node, wanted = fleet.nodes[server], texts.exports(fleet, server)
    _require(state)
    if state.folder == "absent":
        raise CheckFailed(
            "D464",
            f"{node.name} has no folder {node.model_dir} to export.",
            fix=f"dsv41 weights fetch --profile P --fleet F --node {node.name}",
        )
    if state.exporter and state.server[:1] != ("active",):
        text = rewritten(fleet, server, state.exporter, node=node.name, allowed=rewrite)
        if text is not None:
            tell = "cat > /etc/exports && exportfs -rav"
            run = (state.exporter.engine, "exec", "--interactive", state.exporter.name)
            yield Change(id="rewrite", node=node.name, command=(*run, "sh", "-c", tell), text=text)
        return
    _require(state, "systemctl", "exportfs")
    if state.other_roots:
        raise CheckFailed(
            "D465",
            f"{node.name} has another root of its exports: {state.other_roots[0]}.",
            fix=f"take fsid=0 out of it on {node.name}, then exportfs -ra",
        )
    if state.exports != wanted.strip():
        yield Change(id="exports", node=node.name, file=texts.EXPORTS, text=wanted)
    if state.server != _ENABLED:
        enable = ("systemctl", "enable", "--now", "nfs-server")
        yield Change(id="server", node=node.name, command=enable)
    if state.exports != wanted.strip() or state.live != set(texts.clients(fleet, server)):
        yield Change(id="export", node=node.name, command=("exportfs", "-ra"))


def _of_client(fleet: Fleet, rank: int, server: int, state: State) -> Iterator[Change]:
    node, name = fleet.nodes[rank], texts.unit_name(fleet.nodes[rank].model_dir)
    _require(state, "systemctl", "mount.nfs4")
    if _by_hand(fleet, rank, state):
        return
    mount, automount = texts.mount_unit(fleet, rank, server), texts.automount_unit(fleet, rank)
    files = {"mount": (state.mount, mount), "automount": (state.automount, automount)}
    stale = [kind for kind, (there, wanted) in files.items() if there != wanted.strip()]
    if stale and (state.mounted or state.automount_state[:1] == ("active",)):
        stop = ("systemctl", "stop", f"{name}.automount", f"{name}.mount")
        yield Change(id="unmount", node=node.name, command=stop)
    if state.folder == "absent":
        yield Change(id="folder", node=node.name, command=("mkdir", "-p", node.model_dir))
    for kind in stale:
        file = f"{texts.UNITS}/{name}.{kind}"
        yield Change(id=kind, node=node.name, file=file, text=files[kind][1])
    if stale:
        yield Change(id="reload", node=node.name, command=("systemctl", "daemon-reload"))
    if stale or state.automount_state != _ENABLED:
        enable = ("systemctl", "enable", "--now", f"{name}.automount")
        yield Change(id="enable", node=node.name, command=enable)


def _by_hand(fleet: Fleet, rank: int, state: State) -> bool:
    """Whether /etc/fstab mounts the same already; refuses another mount, and files in its way."""
    node = fleet.nodes[rank]
    if state.fstab is not None:
        if state.fstab[0] == texts.source(fleet) and state.fstab[1].startswith("nfs"):
            return True
        raise CheckFailed(
            "D465",
            f"/etc/fstab of {node.name} mounts {state.fstab[0]} on {node.model_dir}; expected "
            f"{texts.source(fleet)}.",
            fix=f"take that line out of /etc/fstab on {node.name}, then umount {node.model_dir}",
        )
    if state.folder == "full":
        raise Unsafe(
            "D466",
            f"{node.name} has files in {node.model_dir}, which the mount would hide.",
            fix=f"move them away, or set model_dir of {node.name} to another folder; without "
            "nfs_server every node uses its own copy",
        )
    return False


def leftovers(fleet: Fleet, states: Mapping[str, State]) -> list[str]:
    """What an earlier share left on nodes that shall have their own copies, a sentence each."""
    found = []
    for node in fleet.nodes:
        state = states.get(node.name)
        if state and state.mounted and state.mounted[1].startswith("nfs"):
            found.append(f"{node.name} mounts {state.mounted[0]} on {node.model_dir}")
        elif state and (state.mount or state.automount):
            found.append(f"{node.name} has a mount unit for {node.model_dir}")
        if state and state.exports:
            found.append(f"{node.name} has {texts.EXPORTS}")
    return found


def removal(fleet: Fleet, states: Mapping[str, State]) -> list[Change]:
    """What takes the share away, mounts first. The NFS server goes on for other exports."""
    changes: list[Change] = []
    for state in states.values():
        _refuse_nixos(state)
    for node in fleet.nodes:
        state, name = states[node.name], texts.unit_name(node.model_dir)
        units = [(kind, f"{name}.{kind}") for kind in ("automount", "mount")]
        there = [unit for kind, unit in units if getattr(state, kind)]
        if there:
            _require(state, "systemctl")
            commands = {
                "disable": ("systemctl", "disable", "--now", *there),
                "remove": ("rm", "-f", *(f"{texts.UNITS}/{unit}" for unit in there)),
                "reload": ("systemctl", "daemon-reload"),
            }
            changes += [Change(id=k, node=node.name, command=c) for k, c in commands.items()]
    for node in fleet.nodes:
        if states[node.name].exports:
            _require(states[node.name])
            remove = ("rm", "-f", texts.EXPORTS)
            changes.append(Change(id="remove-exports", node=node.name, command=remove))
            changes.append(Change(id="export", node=node.name, command=("exportfs", "-ra")))
    return changes


def carry_out(
    changes: list[Change], hosts: Mapping[str, Host], *, say: Callable[[str], None]
) -> None:
    """Make the changes in their order; CheckFailed D468 at the first that fails, in its words."""
    for change in changes:
        host = hosts[change.node]
        say(f"{change.node}: {' '.join(change.step.command)}")
        if change.file:
            host.put(change.text.encode(), change.file, sudo=True)
            continue
        path = ("env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *change.command)
        given = change.text.encode() if change.text else None
        done = host.run(list(path), sudo=True, seconds=_SECONDS, stdin=given)
        if done.status:
            raise CheckFailed(
                "D468",
                f"{change.node}: {' '.join(change.command)} failed: {done.last_word}.",
                fix="end what uses the folder (dsv41 stop), look at journalctl -xe on "
                f"{change.node}, and run the same command again",
            )


def confirm(fleet: Fleet, hosts: Mapping[str, Host]) -> list[str]:
    """Read config.json on the server and through every mount; a sentence a node.

    CheckFailed D469 for a node that reads nothing or something else.
    """
    server = texts.server_of(fleet)
    if server is None:
        return []
    wanted = _digest(fleet, server, hosts)
    if not wanted:
        name = fleet.nodes[server].name
        return [f"{name} exports a folder without config.json: fetch the checkpoint"]
    said = []
    for rank, node in enumerate(fleet.nodes):
        if rank == server or node.name not in hosts:
            continue
        found = _digest(fleet, rank, hosts)
        if found != wanted:
            raise CheckFailed(
                "D469",
                f"{node.name} reads {found[:12] or 'nothing'} as config.json from "
                f"{texts.source(fleet)}; expected {wanted[:12]}.",
                fix=f"open TCP port 2049 of {fleet.nodes[server].name} for {node.name}; on "
                f"{node.name}: journalctl -u '{texts.unit_name(node.model_dir)}.mount'",
            )
        said.append(f"{node.name} reads the checkpoint from {texts.source(fleet)}")
    return said


def _digest(fleet: Fleet, rank: int, hosts: Mapping[str, Host]) -> str:
    """SHA-256 of config.json as a node reads it; empty when it reads nothing."""
    node = fleet.nodes[rank]
    done = hosts[node.name].run(
        ["sha256sum", f"{node.model_dir}/config.json"], sudo=True, seconds=_SECONDS
    )
    return done.stdout.split()[0] if done.status == 0 and done.stdout.split() else ""
