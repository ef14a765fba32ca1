"""fio with the shapes of the bench: what the disk gives to a program that does nothing else.

Options as in fio(1), version 3.33: `iodepth_batch_submit` and `iodepth_batch_complete_min` make
bursts of a shape, each awaited as a whole.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from dsv41.errors import Error

if TYPE_CHECKING:
    from pathlib import Path


def check_fio() -> None:
    """Refuse to begin without fio.

    Raises:
        Error: D472.
    """
    if shutil.which("fio") is None:
        raise Error("D472", "fio is not there.", fix="apt-get install fio, or leave out --with-fio")


def run_fio(path: Path, *, depth: int, burst: bool, seconds: float) -> dict[str, Any]:
    """Random aligned reads of 4 KiB past the page cache by io_uring.

    Returns:
        rows (reads), seconds, cpu_seconds, reads.

    Raises:
        Error: D472, when fio fails.
    """
    shape = ["--iodepth_batch_submit", "--iodepth_batch_complete_min"] if burst else []
    command = [
        *("fio", "--name=rows", f"--filename={path}", "--readonly", "--direct=1", "--bs=4k"),
        *("--rw=randread", "--norandommap", "--randrepeat=0", "--ioengine=io_uring"),
        *("--time_based", f"--runtime={max(1, round(seconds))}", "--output-format=json"),
        *(f"--iodepth={depth}", *(f"{name}={depth}" for name in shape)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Error("D472", f"fio failed: {done.stderr.strip()[-500:]}", fix="see the message")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    took = job["read"]["runtime"] / 1e3
    return {
        "rows": job["read"]["total_ios"],
        "seconds": took,
        "cpu_seconds": (job["usr_cpu"] + job["sys_cpu"]) / 100 * took,
        "reads": job["read"]["total_ios"],
    }
