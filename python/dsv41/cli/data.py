"""`dsv41 share`: one node's checkpoint, exported to the others; tables on every node."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsv41 import fleet
from dsv41 import share as sharing
from dsv41.errors import CheckFailed, Error
from dsv41.host.reach import Host, each
from dsv41.share import tables, texts

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk
    from dsv41.fleet import Fleet
    from dsv41.steps import Step


def share(args: Namespace, talk: Talk) -> int:
    """Export the checkpoint of one node to the others, or take that away."""
    found = fleet.load(args.fleet)
    with reached(found, range(len(found.nodes))) as hosts:
        if args.tables:
            return _tables(found, hosts, args, talk)
        states = all_of(each(tuple(hosts.values()), lambda host: _state(host, found)))
        changes = _changes(found, states, args)
        if args.dry_run:
            for change in changes:
                talk.put(line(change.step))
        else:
            sharing.carry_out(changes, hosts, say=talk.say)
        said = [] if args.dry_run or args.remove else sharing.confirm(found, hosts)
    if not changes and not said:
        said = ["nothing to do"]
    if args.json:
        steps = [asdict(change.step) for change in changes]
        talk.document("share", server=found.nfs_server, changes=steps, says=said)
    else:
        for says in said:
            talk.put(says)
    return 0


def _state(host: Host, found: Fleet) -> sharing.State:
    node = next(node for node in found.nodes if node.name == host.name)
    return sharing.read(host, node)


def _changes(
    found: Fleet, states: Mapping[str, sharing.State], args: Namespace
) -> list[sharing.Change]:
    if args.remove:
        return sharing.removal(found, states)
    left = sharing.leftovers(found, states)
    if texts.server_of(found) is None and left:
        raise CheckFailed(
            "D465",
            f"Every node has its own copy, as nfs_server is not set, yet {'; '.join(left)}.",
            fix=f"dsv41 share --fleet {args.fleet} --remove",
        )
    return sharing.plan(found, states, rewrite=args.rewrite_exporter)


def _tables(found: Fleet, hosts: Mapping[str, Host], args: Namespace, talk: Talk) -> int:
    if args.dry_run:
        wanted = tables.contents(found)
        done = {
            name: {key: "put" if wanted[key] is not None else "remove" for key in wanted}
            for name in hosts
        }
    else:
        done = tables.push(found, hosts)
    if args.json:
        talk.document("share-tables", nodes=done, files=tables.targets(found))
    else:
        for name, kinds in done.items():
            talk.put(f"{name}: " + ", ".join(f"{key} {what}" for key, what in kinds.items()))
    return 0


@contextmanager
def reached(found: Fleet, ranks: Iterable[int]) -> Iterator[dict[str, Host]]:
    """The hosts of some ranks; their connections end with the block."""
    chosen = [found.nodes[rank] for rank in ranks]
    hosts = {n.name: Host(name=n.name, destination=n.ssh, sudo=n.sudo) for n in chosen}
    try:
        yield hosts
    finally:
        for host in hosts.values():
            host.close()


def all_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results; the first error, when a machine had one."""
    for result in results.values():
        if isinstance(result, Error):
            raise result
    return dict(results)


def line(step: Step) -> str:
    """A step as a person reads it."""
    return f"step {step.id} on {step.node} [{step.effect}]: {' '.join(step.command)}"
