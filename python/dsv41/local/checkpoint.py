"""The tiny checkpoint: made on first use, the same bytes everywhere, checked at every use.

It is in the released form: config.json, sharded safetensors with index, official tensor names, the
real tokenizer. All values are random on an exact grid, but for the fixture's output head: it is
fitted to some conversations, and comes from a committed file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import file_digest, sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.errors import UsageError
from dsv41.local import geometries, tokenizer_files, writer
from dsv41.local.config import ModelConfig
from dsv41.local.grid import draw
from dsv41.local.head import Readout
from dsv41.local.tensors import specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsv41.local.tensors import TensorSpec

MAKER = 1  # raise when equal configuration and tensors come out as other bytes
MARKER = "dsv41-checkpoint.json"
FIXTURE_ENGRAM_LAYERS: tuple[int, ...] = tuple(
    geometries.config("fixture")["text_config"]["engram_layer_ids"]
)
SHARD_BYTES = {"fixture": 40 << 20, "gpu": 256 << 20}
GENERATION_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")
SMALL_FILES = 16 << 20  # tokenizer, map, index and slack beside the tensors


def ensure(state_dir: Path, *, geometry: str = "fixture") -> Path:
    """Make the checkpoint's folder below `state_dir` if absent, damaged or of an older recipe.

    Safe for several processes at once: one makes it, the others wait for it. The folder appears
    whole or not at all.

    Raises:
        UsageError: D043, when the folder cannot be written or the disk is full; D048, D040 or D041,
            when the tokenizer is missing or another one.
        CheckFailed: D047, when the committed output head does not fit.
    """
    return make(state_dir, geometry, readout=committed_readout(geometry))


def committed_readout(geometry: str) -> Readout | None:
    """The fitted output head of the fixture, where it is committed; other geometries have none."""
    path = Path(str(files("dsv41.local"))) / "readout" / "head.safetensors"
    return Readout.from_file(path) if geometry == "fixture" and path.is_file() else None


def make(state_dir: Path, geometry: str, *, readout: Readout | None) -> Path:
    """As `ensure`, with a given output head; None leaves it random."""
    target = state_dir / "checkpoints" / geometry
    raw = geometries.config(geometry)
    recipe = _recipe(raw, readout)
    if not is_whole(target, recipe):
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _lock(target.with_name(f".{geometry}.lock")):
                if not is_whole(target, recipe):
                    _replace(target, raw, recipe, readout)
    return target


def digest(directory: Path) -> str:
    """Identity of a checkpoint folder: SHA-256 over the names and SHA-256 of its files.

    Every byte is read. The marker, which holds the same digests, does not count.
    """
    return _identity({path.name: _sha256(path) for path in _content(directory)})


def is_whole(directory: Path, recipe: str) -> bool:
    """Whether the folder is of this recipe and every file has the bytes it was made with."""
    try:
        marker = json.loads((directory / MARKER).read_text(encoding="utf-8"))
        return (
            marker["recipe"] == recipe
            and [path.name for path in _content(directory)] == sorted(marker["files"])
            and all(_sha256(directory / name) == made for name, made in marker["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _recipe(raw: dict[str, Any], readout: Readout | None) -> str:
    """What decides the bytes: configuration, every tensor's grid, the head, the maker's version."""
    tensors = [repr(spec) for spec in specs(ModelConfig.from_dict(raw))]
    head = readout.digest if readout else None
    return sha256(json.dumps([MAKER, raw, tensors, head]).encode()).hexdigest()


def _replace(target: Path, raw: dict[str, Any], recipe: str, readout: Readout | None) -> None:
    """Make the folder beside its place, then put it there; the lock is held."""
    making, old = (target.with_name(f".{target.name}.{state}") for state in ("making", "old"))
    for left in (making, old):
        shutil.rmtree(left, ignore_errors=True)
    making.mkdir()
    _require_space(making, raw)
    _write(making, raw, recipe, readout, geometry=target.name)
    if target.exists():
        target.rename(old)
    making.rename(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write(
    folder: Path, raw: dict[str, Any], recipe: str, readout: Readout | None, *, geometry: str
) -> None:
    config = ModelConfig.from_dict(raw)

    def fill(spec: TensorSpec) -> bytes | memoryview:
        if spec.name == "head.weight" and readout:
            return readout.weight(config)
        return draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype)

    shards = writer.shard_tensors(specs(config), limit=SHARD_BYTES[geometry])
    source = tokenizer_files.packed_tokenizer()
    with ThreadPoolExecutor(max_workers=1) as pool:  # two halves of like length: 1.3 s and 2.1 s
        tensors = pool.submit(writer.write_shards, folder, shards, fill=fill)
        small = {
            "config.json": _json(raw),
            "generation_config.json": _json({k: raw[k] for k in GENERATION_KEYS}),
            **tokenizer_files.tokenizer_files(source),
        }
    made = tensors.result() | {
        name: writer.write_file(folder / name, [text]) for name, text in small.items()
    }
    marker = {
        "schema": "dsv41.checkpoint/1",
        "recipe": recipe,
        "digest": _identity(made),
        "files": dict(sorted(made.items())),
    }
    writer.write_file(folder / MARKER, [_json(marker)])
    _sync_folder(folder)


def _require_space(folder: Path, raw: dict[str, Any]) -> None:
    need = sum(spec.bytes for spec in specs(ModelConfig.from_dict(raw))) + SMALL_FILES
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(errno.ENOSPC, f"{need} bytes are needed, {free} are free")


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Turn a failure of the file system into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            "D043",
            f"The checkpoint cannot be made in {target}: {error.strerror or error}.",
            fix="free space or give another folder with --state-dir",
        ) from error


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; the kernel lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _content(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name != MARKER)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _identity(digests: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return sha256(lines.encode()).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
