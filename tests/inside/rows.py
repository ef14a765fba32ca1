"""Run by the Python of an image: compile the row store with its g++, read rows of a file.

`python rows.py QUESTION.json ANSWER.json` with {path, given, ids}; the rows come back as hex.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from dsv41.rows.abi import Library
from dsv41.rows.build import library


def main() -> None:
    """Answer."""
    question = json.loads(Path(sys.argv[1]).read_text())
    began = time.monotonic()
    path = library()
    seconds = time.monotonic() - began
    loaded = Library(path)
    ids = np.array(question["ids"], np.int64)
    weights, scales = np.empty((len(ids), 256), np.uint8), np.empty((len(ids), 8), np.uint8)
    store = loaded.RowStore.open(question["path"], **question["given"])
    store.lookup(ids, weights, scales)
    rows = [w.tobytes().hex() + s.tobytes().hex() for w, s in zip(weights, scales, strict=True)]
    answer = {"compiled": round(seconds, 1), "rows": rows, "library": path.read_bytes()[:20].hex()}
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
