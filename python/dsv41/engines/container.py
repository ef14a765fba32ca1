"""What the container of a rank is given: mounts, devices, limits, the folders of its caches."""

from __future__ import annotations

from pathlib import PurePath

from dsv41.engines.trees import Tree
from dsv41.fleet import Fleet
from dsv41.profile import Profile

MODEL = "/models/DeepSeek-V4.1-Flash"
ROWS = "/engram"
CACHE = "/cache"
KEY_FILE = "/run/dsv41/api-key"
TABLES = {"sps_table": "/state/dspark_sps.json", "sts_table": "/state/dspark_sts.json"}

# kernels that were compiled once are found again: all below the one mounted folder
CACHE_ENVIRONMENT = {
    "HOME": CACHE,
    "XDG_CACHE_HOME": f"{CACHE}/xdg",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TILELANG_CACHE_DIR": f"{CACHE}/tilelang",
    "FLASHINFER_WORKSPACE_BASE": f"{CACHE}/flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "CUDA_CACHE_PATH": f"{CACHE}/nv",
}


def folders(fleet: Fleet, rank: int) -> tuple[str, ...]:
    """The mounts that every engine has: checkpoint, rows, and the keys on the head alone."""
    node = fleet.nodes[rank]
    found = (f"{node.model_dir}:{MODEL}:ro", f"{node.rows_dir}:{ROWS}:ro")
    if rank == 0 and fleet.api_key_file:
        return (*found, f"{fleet.api_key_file}:{KEY_FILE}:ro")
    return found


def mounts(fleet: Fleet, rank: int, *, tree: Tree) -> tuple[str, ...]:
    """`source:target[:ro]` of one rank, without its cache folder; keys on the head alone."""
    node = fleet.nodes[rank]
    model, rows, *keys = folders(fleet, rank)
    found = [model, rows]
    for key, target in TABLES.items():
        if getattr(fleet, key):
            # the file lies where the Plan is made; `serve` puts a copy on every node
            found.append(f"{fleet.state_dir}/tables/{PurePath(target).name}:{target}:ro")
    if node.nccl_library:
        found.append(f"{node.nccl_library}:{tree.nccl_path}:ro")
    return (*found, *keys)


def options(profile: Profile) -> tuple[str, ...]:
    """Options that docker and podman both know. Never --privileged, never --gpus all.

    The GPU comes by CDI, as NixOS and podman have it. There is no --ipc host beside the limit on
    /dev/shm: podman refuses the pair, docker ignores the limit.
    """
    found = [
        "--network=host",
        f"--shm-size={profile['shm_gib']}g",
        "--device=nvidia.com/gpu=all",
        "--device=/dev/infiniband",
        "--cap-add=IPC_LOCK",
        "--ulimit=memlock=-1:-1",
        f"--oom-score-adj={profile['oom_score_adj']}",
        f"--restart={profile['restart']}",
    ]
    stack = profile.get("stack_bytes")
    if stack is not None:
        found.append(f"--ulimit=stack={stack}:{stack}")
    return tuple(found)
