"""Where it is served: nodes, their links and folders. Network facts are per node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One host of a fleet; its position is its rank."""

    name: str
    ssh: str
    address: str
    model_dir: str
    rows_dir: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """The nodes of one service and the ports that it uses."""

    topology: str
    nodes: tuple[Node, ...]
    api_host: str
    api_port: int
    master_port: int
    state_dir: str
    api_key_file: str | None = None

    @property
    def run_dir(self) -> str:
        """The folder of the Plan, the lock and the logs of the service that runs."""
        return str(PurePath(self.state_dir) / "run")

    @property
    def plan_file(self) -> str:
        """Where the Plan lies that the ranks carry out."""
        return str(PurePath(self.run_dir) / "plan.json")


def loopback(
    *, tp: int, state_dir: str, port: int, master_port: int, api_key_file: str | None = None
) -> Fleet:
    """The fleet of profile `local`: `tp` ranks on this machine, reachable on 127.0.0.1 alone."""
    state = PurePath(state_dir)
    nodes = tuple(
        Node(
            name=f"local{rank}",
            ssh="local",
            address="127.0.0.1",
            model_dir=str(state / "checkpoint"),
            rows_dir=str(state / "rows"),
        )
        for rank in range(tp)
    )
    return Fleet(
        topology="loopback",
        nodes=nodes,
        api_host="127.0.0.1",
        api_port=port,
        master_port=master_port,
        state_dir=state_dir,
        api_key_file=api_key_file,
    )
