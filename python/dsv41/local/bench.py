"""Measure the local engine through its real command: `python -m dsv41.local.bench`.

Every figure is the median over alternated services of one and of three ranks. Rates are those of
the fitted endless answer, cut just before the loop guard would stop it; all eight streams say the
same word, so a step reads the same Engram rows for each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv41.api import Endpoint
from dsv41.errors import CheckFailed, Error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STREAMS = 8
ENDLESS = "Repeat the word loop forever."
TOKENS = 60  # the guard stops 64 identical ones
# 16 ids, and 4 of the frame around them
PROMPT = "The quick brown fox jumps over the lazy dog, and then it sleeps again."
PROMPT_TOKENS = 20
AIMS = {
    "tp3.ready_seconds": "<= 8",
    "tp3.first_token_seconds": "<= 0.5",
    "tp3.one_stream_tokens_per_second": ">= 6",
    "tp1.one_stream_tokens_per_second": ">= 30",
    "tp1.eight_to_one": ">= 2",
    "tp3.rss_bytes_per_rank": "<= 700e6",
}


def main(argv: Sequence[str]) -> int:
    """Measure, write the receipt, print it."""
    parser = argparse.ArgumentParser(prog="python -m dsv41.local.bench", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/local-engine.json"))
    parser.add_argument("--state-dir", type=Path, default=Path(".state/bench"))
    parser.add_argument("--rounds", type=int, default=3, help="services of each size")
    options = parser.parse_args(argv)
    try:
        receipt = measure(options.state_dir.resolve(), rounds=options.rounds, say=_say)
    except Error as error:
        _say(f"{error.code} {error.says}")
        return error.exit_status
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(receipt, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(receipt["figures"], indent=2) + "\n")
    return 0


def measure(state_dir: Path, *, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Give the receipt of alternated rounds; a first service of each size only warms the disk."""
    runs: list[dict[str, Any]] = []
    for number in range(rounds + 1):
        for tp in (1, 3):
            run = _service(state_dir, tp=tp)
            say(f"round {number}, {tp} ranks: {json.dumps(run)}")
            if number:
                runs.append(run)
    return {
        "schema": "dsv41.bench-local/1",
        "command": "python -m dsv41.local.bench",
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "machine": _machine(),
        "figures": {f"tp{tp}": _medians([r for r in runs if r["tp"] == tp]) for tp in (1, 3)},
        "aims": AIMS,
        "runs": runs,
    }


def _service(state_dir: Path, *, tp: int) -> dict[str, Any]:
    """Start a service, measure it, stop it."""
    where = ["--profile", "local", "--state-dir", str(state_dir)]
    port = _free_port()
    began = time.monotonic()
    _dsv41("serve", *where, "--tp", str(tp), "--port", str(port), "--detach")
    ready = time.monotonic() - began
    try:
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}")
        first = [_first_token(endpoint) for _ in range(6)][1:]
        one = [_stream(endpoint, ENDLESS, tokens=TOKENS) for _ in range(2)]
        one_rate = statistics.median(text["tokens"] / text["seconds"] for text in one)
        eight_rate = _crowd(endpoint)
        rss = _resident(state_dir)
    finally:
        _dsv41("stop", *where)
    return {
        "tp": tp,
        "ready_seconds": round(ready, 2),
        "first_token_seconds": round(statistics.median(first), 3),
        "one_stream_tokens_per_second": round(one_rate, 1),
        "eight_streams_tokens_per_second": round(eight_rate, 1),
        "eight_to_one": round(eight_rate / one_rate, 2),
        "rss_bytes_per_rank": max(rss),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _first_token(endpoint: Endpoint) -> float:
    """Seconds to the first text of a prompt of PROMPT_TOKENS."""
    answer = _stream(endpoint, PROMPT, tokens=2)
    if answer["prompt"] != PROMPT_TOKENS:
        found = answer["prompt"]
        raise CheckFailed(
            "D067",
            f"the prompt has {found} tokens; {PROMPT_TOKENS} were meant.",
            fix="lengthen or shorten PROMPT in python/dsv41/local/bench.py",
        )
    return float(answer["first"])


def _stream(endpoint: Endpoint, prompt: str, *, tokens: int) -> dict[str, Any]:
    """One streamed answer: seconds to the first text and in all, and its tokens."""
    began = time.monotonic()
    first = 0.0
    usage: dict[str, int] = {}
    for chunk in endpoint.stream(
        model="dsv41-fixture",
        messages=[{"role": "user", "content": prompt}],
        chat_template_kwargs={"thinking": False},
        temperature=0,
        max_tokens=tokens,
        stream_options={"include_usage": True},
    ):
        usage = chunk.get("usage") or usage
        if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
            first = time.monotonic() - began
    return {
        "first": first,
        "seconds": time.monotonic() - began,
        "prompt": usage["prompt_tokens"],
        "tokens": usage["completion_tokens"],
    }


def _crowd(endpoint: Endpoint) -> float:
    """Tokens per second of eight streams that run together."""

    def one(_: int) -> int:
        return int(_stream(endpoint, ENDLESS, tokens=TOKENS)["tokens"])

    began = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        return sum(pool.map(one, range(STREAMS))) / (time.monotonic() - began)


def _resident(state_dir: Path) -> list[int]:
    """Resident bytes of each rank: the child of each `rank exec`."""
    pids = json.loads((state_dir / "run" / "ranks.json").read_text(encoding="utf-8"))
    found = []
    for pid in pids.values():
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
        status = Path(f"/proc/{children[0]}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        found.append(int(line.split()[1]) * 1024)
    return found


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in runs[0] if name not in ("tp", "load_average")]
    return {name: statistics.median(run[name] for run in runs) for name in names}


def _machine() -> dict[str, Any]:
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in cpus if line.startswith("model name")), "")
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _dsv41(*argv: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dsv41", *argv], capture_output=True, text=True, check=False
    )
    if done.returncode:
        says = (done.stderr.strip() or done.stdout.strip()).replace("\n", " ")
        raise CheckFailed(
            "D067",
            f"dsv41 {argv[0]} ended with status {done.returncode}: {says}",
            fix="mend what it says, then measure again",
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
