"""Commands for what this version has no command of its own for, to be run on the node."""

from __future__ import annotations

import json
import shlex

from dsv41.doctor.check import Case

REPOSITORY = "deepseek-ai/DeepSeek-V4.1-Flash"


def fetch(case: Case) -> str:
    """Download what is missing of the checkpoint; what is there and whole is kept."""
    revision = f" --revision {case.expect.revision}" if case.expect.revision else ""
    folder = shlex.quote(case.node.model_dir)
    return f"on {case.name}: hf download {REPOSITORY}{revision} --local-dir {folder}"


def compare(case: Case) -> str:
    """Hash the shards; `hf download` records the SHA-256 of a large file as its etag, line 2."""
    folder = shlex.quote(case.node.model_dir)
    return (
        f"on both: cd {folder} && sha256sum *.safetensors, and compare with line 2 of "
        ".cache/huggingface/download/FILE.metadata; fetch what differs again"
    )


def pack(case: Case) -> str:
    """Write the row files of the node's rank (about 10 minutes); whole ones are kept."""
    node, expect = case.node, case.expect
    model, rows, cut = map(json.dumps, (node.model_dir, node.rows_dir, expect.partition))
    code = (
        "from pathlib import Path; from dsv41 import rows; "
        "from dsv41.geometry import REAL_ENGRAM, Shard; "
        f"rows.pack(checkpoint=Path({model}), out=Path({rows}), "
        f"engram=REAL_ENGRAM, partition={cut}, "
        f"shard=Shard(rank={case.rank}, tp={expect.tp}))"
    )
    return f"on {case.name}, about 10 min: python3 -c {shlex.quote(code)}"


def measure(folder: str) -> str:
    """Random direct reads of one page each, as the row store makes them."""
    path = shlex.quote(f"{folder}/fio.tmp")
    return (
        f"fio --name=rows --filename={path} --size=4G --direct=1 --rw=randread --bs=4k "
        f"--ioengine=io_uring --iodepth=64 --runtime=10 --time_based; rm {path}"
    )
