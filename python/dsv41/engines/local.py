"""The flags and environment of the CPU engine (`python -m dsv41.local.rank`)."""

from __future__ import annotations

from dsv41 import switches
from dsv41.engines import Launch
from dsv41.fleet import Fleet
from dsv41.profile import Profile

_SWITCHES = ("max_new_tokens", "reasoning_effort", "loop_abort")


def render(profile: Profile, fleet: Fleet, rank: int) -> Launch:
    """One rank's launch. `python` means the interpreter that carries out the Plan."""
    node = fleet.nodes[rank]
    argv = [
        *("python", "-m", "dsv41.local.rank"),
        *("--rank", str(rank)),
        *("--world", str(len(fleet.nodes))),
        *("--master", f"{fleet.nodes[0].address}:{fleet.master_port}"),
        *("--checkpoint", node.model_dir),
        *("--rows", node.rows_dir),
        *("--partition", str(profile["partition"])),
        *("--layout", str(profile["layout"])),
        *("--row-engine", str(profile["row_engine"])),
        *("--slots", str(profile["slots"])),
        *("--context", str(profile["context"])),
        *("--peer-timeout", str(profile["peer_timeout_seconds"])),
    ]
    if rank == 0:
        argv += ["--serve", f"{fleet.api_host}:{fleet.api_port}"]
        if fleet.api_key_file:
            argv += ["--api-key-file", fleet.api_key_file]
    asked = {name: profile.get(name) for name in _SWITCHES}
    env = {
        # one thread a rank: three ranks share two cores, and sums then keep one order
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **switches.render({name: value for name, value in asked.items() if value is not None}),
    }
    own = frozenset({"--rank", "--serve", "--api-key-file", "--checkpoint", "--rows"})
    return Launch(argv=tuple(argv), env=env, own_flags=own)
