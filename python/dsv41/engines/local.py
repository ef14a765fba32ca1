"""The flags and environment of the CPU engine (`python -m dsv41.local.rank`).

On loopback its ranks are processes of this machine and read its folders; on a fleet of nodes they
run in containers of image-local, with the same mounts as the other engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from dsv41 import switches
from dsv41.engines import Launch, container
from dsv41.fleet import Fleet
from dsv41.profile import Profile

_SWITCHES = ("max_new_tokens", "reasoning_effort", "loop_abort", "engram_prefetch")
_OWN = ("--rank", "--serve", "--api-key-file", "--checkpoint", "--rows")
_INTERFACE = "GLOO_SOCKET_IFNAME"


def render(profile: Profile, fleet: Fleet, rank: int) -> Launch:
    """One rank's launch. `python` means the interpreter that has the engine, here or in the image.

    `rank exec` adds the name of the service, which is made of the Plan's digest.
    """
    if not fleet.contained:
        own = frozenset(_OWN)
        return Launch(argv=_argv(profile, fleet, rank), env=_env(profile, "lo"), own_flags=own)
    return Launch(
        argv=_argv(profile, fleet, rank),
        env=_env(profile, fleet.nodes[rank].socket_ifname),
        mounts=container.folders(fleet, rank),
        options=("--network=host",),
        own_flags=frozenset({*_OWN, _INTERFACE}),
        cache=container.CACHE,  # image-local has HOME and XDG_CACHE_HOME there
    )


def _argv(profile: Profile, fleet: Fleet, rank: int) -> tuple[str, ...]:
    checkpoint, rows, keys = _places(fleet, rank)
    argv = [
        *("python", "-m", "dsv41.local.rank"),
        *("--rank", str(rank)),
        *("--world", str(len(fleet.nodes))),
        *("--master", f"{fleet.nodes[0].address}:{fleet.master_port}"),
        *("--checkpoint", checkpoint),
        *("--rows", rows),
        *("--partition", str(profile["partition"])),
        *("--layout", str(profile["layout"])),
        *("--row-engine", str(profile["row_engine"])),
        *("--slots", str(profile["slots"])),
        *("--context", str(profile["context"])),
        *("--peer-timeout", str(profile["peer_timeout_seconds"])),
    ]
    if rank == 0:
        argv += ["--serve", f"{fleet.api_host}:{fleet.api_port}"]
        if keys:
            argv += ["--api-key-file", keys]
    return tuple(argv)


def _places(fleet: Fleet, rank: int) -> tuple[str, str, str | None]:
    """Checkpoint, rows and key file as the rank sees them."""
    if fleet.contained:
        return container.MODEL, container.ROWS, fleet.api_key_file and container.KEY_FILE
    return fleet.nodes[rank].model_dir, fleet.nodes[rank].rows_dir, fleet.api_key_file


def _env(profile: Profile, interface: str) -> Mapping[str, str]:
    asked = {name: profile.get(name) for name in _SWITCHES}
    return {
        # one thread a rank: three ranks share two cores, and sums then keep one order
        "OMP_NUM_THREADS": "1",
        _INTERFACE: interface,
        **switches.render({name: value for name, value in asked.items() if value is not None}),
    }
