"""A rank's part of a checkpoint on a GPU, by the read plan and mapped. Prints its figures."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dsv41.adapters.fast_reader import TORCH, Reader
from dsv41.adapters.read_plan import Place, Plan, headers

# experts in the released shapes: 18.8 MB each
TEXT = {"hidden_size": 5120, "moe_intermediate_size": 2304, "n_routed_experts": 384}
SHAPES: dict[str, tuple[str, tuple[int, int]]] = {
    "w1.weight": ("I8", (2304, 2560)),
    "w1.scale": ("F8_E8M0", (2304, 160)),
    "w2.weight": ("I8", (5120, 1152)),
    "w2.scale": ("F8_E8M0", (5120, 72)),
    "w3.weight": ("I8", (2304, 2560)),
    "w3.scale": ("F8_E8M0", (2304, 160)),
}
EXPERTS, FILES = 60, 4
RANK, RANKS = 1, 4
Pairs = Iterator[tuple[str, torch.Tensor]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("experts")
    return [write(folder / f"model-{layer}.safetensors", layer) for layer in range(FILES)]


def write(path: Path, layer: int) -> Path:
    header, end = {}, 0
    for expert in range(EXPERTS):
        for name, (dtype, shape) in SHAPES.items():
            size = shape[0] * shape[1]
            place = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            header[f"layers.{layer}.ffn.experts.{expert}.{name}"] = place
            end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(EXPERTS):
            file.write(os.urandom(end // EXPERTS))
        file.flush()
        os.fsync(file.fileno())
    return path


def forget(files: list[Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mapped(files: list[Path]) -> Pairs:
    """As the engine's loader does: views of mapped files."""
    for file in files:
        whole = torch.from_file(str(file), size=file.stat().st_size, dtype=torch.uint8)
        for one in headers(file):
            flat = whole[one.start : one.start + one.bytes]
            yield one.name, flat.view(getattr(torch, TORCH[one.dtype])).view(one.shape)


def planned(files: list[Path]) -> Pairs:
    place = Place(
        part="target", tp=(RANK, RANKS), attn=(RANK, RANKS), ep=(0, 1), inner=(RANK, RANKS)
    )
    reader = Reader(files, Plan({"text_config": TEXT}, place), budget=2 * 10**9)
    yield from reader
    assert reader.held.faulted == 0


def to_gpu(tensors: Pairs) -> dict[str, torch.Tensor]:
    """Each tensor cut and copied by threads, as the engine's loader does; uint8 on the GPU."""

    def keep(name: str, tensor: torch.Tensor) -> torch.Tensor:
        along = 1 if ".w2." in name else 0
        each = tensor.shape[along] // RANKS
        part = tensor.narrow(along, RANK * each, each).view(torch.uint8)
        return torch.empty(part.shape, dtype=torch.uint8, device="cuda").copy_(part)

    with ThreadPoolExecutor() as pool:
        coming = {}
        for name, tensor in tensors:
            coming[name] = pool.submit(keep, name, tensor)
            del tensor
        found = {name: future.result() for name, future in coming.items()}
    torch.cuda.synchronize()
    return found


def timed(
    files: list[Path], how: Callable[[list[Path]], Pairs]
) -> tuple[float, dict[str, torch.Tensor]]:
    forget(files)
    begun = time.perf_counter()
    found = to_gpu(how(files))
    return time.perf_counter() - begun, found


def test_a_ranks_part_on_the_gpu(files: list[Path]) -> None:
    everything = sum(file.stat().st_size for file in files)
    torch.zeros(1, device="cuda")
    seconds: dict[str, list[float]] = {"mapped": [], "planned": []}
    for _ in range(3):
        took, theirs = timed(files, mapped)
        seconds["mapped"].append(round(took, 2))
        took, ours = timed(files, planned)
        seconds["planned"].append(round(took, 2))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    kept = sum(part.numel() for part in ours.values())
    figures = {"file bytes": everything, "kept": kept, "seconds": seconds}
    sys.stderr.write(json.dumps(figures) + "\n")
    assert abs(kept * RANKS - everything) < 1 << 20
