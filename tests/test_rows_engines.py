"""What a kernel may refuse: an engine does with less, or `auto` takes the next and says why."""

from __future__ import annotations

import ctypes
import errno
import resource
import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest

from dsv41 import rows
from rowsfix import RIGHT, Checkpoint, pack_all, write_checkpoint
from rowstool import UNSUPPORTED, Tool, assert_exact, build_tool, look

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    return build_tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = pack_all(checkpoint, tmp_path_factory.mktemp("rows"), ["weighted"])
    return folder / rows.file_name(**RIGHT)


def test_a_ring_does_with_less(tool: Tool, path: Path, checkpoint: Checkpoint) -> None:
    best = ["single_issuer, defer_taskrun", "fixed_file", "fixed_buffers"]
    for fault, features, reason in (
        ("noregister", best[:1], "errno 1, Operation not permitted"),
        ("noflags", best[1:], "errno 22, Invalid argument"),
    ):
        stats = assert_exact(look(tool, path, engine="uring", fault=fault), checkpoint)
        assert stats["engine_features"] == features
        assert all(refusal.endswith(reason) for refusal in stats["engine_refused"])
        assert set(best) - set(features) <= {
            refusal.partition(": ")[0] for refusal in stats["engine_refused"]
        }
    stats = assert_exact(look(tool, path, engine="uring", fault="none"), checkpoint)
    assert (stats["engine_features"], stats["engine_refused"]) == (best, [])


def refuse_io_uring() -> None:
    """Install a filter as container runtimes do: EPERM for calls 425 to 427, all others pass.

    Two instructions of classic BPF per range, `linux/filter.h`: load the number (offset 0 of
    seccomp_data), leave to the end below 425 and above 427, else SECCOMP_RET_ERRNO with EPERM.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    load, at_least, above, end = 0x20, 0x35, 0x25, 0x06
    program = [
        (load, 0, 0, 0),
        (at_least, 0, 2, 425),
        (above, 1, 0, 427),
        (end, 0, 0, 0x0005_0000 | errno.EPERM),
        (end, 0, 0, 0x7FFF_0000),
    ]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    held = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("=H6xQ", len(program), ctypes.addressof(held))
    no_new_privileges, set_seccomp, filtered = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, filtered, head, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def lock_at_most(size: int) -> None:
    """Lower the limit, and give up the capability that lets root ignore it."""
    drop_from_bounding_set, ipc_lock = 24, 14
    ctypes.CDLL(None).prctl(drop_from_bounding_set, ipc_lock, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, size))


def test_below_a_seccomp_filter_auto_takes_kernel_aio(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    stats = assert_exact(look(tool, path, before=refuse_io_uring), checkpoint)
    assert stats["engine"] == "aio"
    assert stats["refusals"] == ["uring: io_uring_setup refused: errno 1, Operation not permitted"]
    done = look(tool, path, engine="uring", before=refuse_io_uring)
    assert done.status == UNSUPPORTED


def test_a_ring_reads_into_unregistered_memory_where_little_may_be_locked(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    """Room for the rings themselves (some 16 KiB), not for 512 KiB of pages."""
    before = partial(lock_at_most, 64 << 10)
    for engine in ("uring", "auto"):
        stats = assert_exact(look(tool, path, engine=engine, before=before), checkpoint)
        assert stats["engine"] == "uring"
        assert stats["engine_features"] == ["single_issuer, defer_taskrun", "fixed_file"]
        assert stats["engine_refused"] == ["fixed_buffers: errno 12, Cannot allocate memory"]


def test_where_no_memory_may_be_locked_auto_takes_kernel_aio(
    tool: Tool, path: Path, checkpoint: Checkpoint
) -> None:
    before = partial(lock_at_most, 0)
    stats = assert_exact(look(tool, path, before=before), checkpoint)
    assert stats["engine"] == "aio"
    refusal = "uring: io_uring_setup refused: errno 12, Cannot allocate memory"
    assert stats["refusals"] == [refusal]
    assert look(tool, path, engine="uring", before=before).status == UNSUPPORTED
