"""Run by the Python of image-local: a rank of a Plan, one question to it, its end.

`python served.py QUESTION.json ANSWER.json` with {argv, url, body}.
"""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PATIENCE = 600


def main() -> None:
    """Answer."""
    question = json.loads(Path(sys.argv[1]).read_text())
    url = question["url"]
    began = time.monotonic()
    rank = subprocess.Popen(question["argv"])
    try:
        while not ready(f"{url}/ready"):
            if rank.poll() is not None or time.monotonic() - began > PATIENCE:
                sys.exit(f"the rank is not ready; its exit status is {rank.poll()}")
            time.sleep(0.2)
        seconds = time.monotonic() - began
        data, kind = json.dumps(question["body"]).encode(), {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/v1/chat/completions", data, kind)  # noqa: S310
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:  # noqa: S310
            said = json.load(answer)
    finally:
        rank.terminate()
        status = rank.wait()
    found = {"ready": round(seconds, 1), "said": said, "status": status}
    Path(sys.argv[2]).write_text(json.dumps(found))


def ready(url: str) -> bool:
    """Whether it says so."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
        return bool(answer.status == 200)
    return False


if __name__ == "__main__":
    main()
