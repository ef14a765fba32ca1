"""A small engine for the tests of rounds: serves /ready and /metrics, and ends as it is told.

`rounds_engine.py RANK PORT FOLDER`: rank 0 listens on PORT. It looks for FOLDER/tell-RANK and does
what stands there once: `exit N` after the lines that follow, or `metrics` (answers with FOLDER/
metrics). It ends with its parent, and with 0 on a TERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RANK, PORT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


class Answers(BaseHTTPRequestHandler):
    """200 for both; the metrics are those of the folder."""

    def do_GET(self) -> None:
        metrics = FOLDER / "metrics"
        body = metrics.read_bytes() if self.path == "/metrics" and metrics.exists() else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
        """Nothing."""


def say(text: str) -> None:
    """A line of its log."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until told, terminated or orphaned."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    parent = os.getppid()
    if RANK == 0:
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"engine of rank {RANK} runs")
    tell = FOLDER / f"tell-{RANK}"
    while os.getppid() == parent:
        if tell.exists():
            words, *lines = tell.read_text().split("\n")
            tell.unlink()
            say("\n".join(lines))
            os._exit(int(words.split()[1]))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
