"""What our own plugin and row store say in an engine's log."""

from __future__ import annotations

import re

from dsv41.diagnose.pattern import Pattern

CAUSES = (
    Pattern(
        code="D345",
        line=re.compile(r'"event": "dsv41_rows_fatal", "kind": "(\w{1,20})"'),
        says="A row could not be read as it was packed ({0}); the rank ended rather than serve a "
        "wrong one.",
        fix="dsv41 rows verify FILE with the file that the line names; check the drive, then pack "
        "this rank again",
        boot=False,
    ),
    Pattern(
        code="D344",
        line=re.compile(r"^dsv41: (D\d{3}) (.{1,200}?)\.?$"),
        says="The engine plugin ended the process ({0}): {1}.",
        fix="dsv41 explain the code that the line names",
        engines=("sglang", "vllm"),
        general=True,
    ),
    Pattern(
        code="D346",
        line=re.compile(r"MXFP8 backend '(\w{1,20})' rejected N=(\d{1,7}) K=(\d{1,7})"),
        says="{0} has no kernel for dense layers of {1} x {2}; CUTLASS serves them, more slowly.",
        fix="compare with the other ranks: on one rank alone it is a padded layer whose scales "
        "were not repaired; then set scale_repair = true",
        level="warn",
        engines=("sglang",),
        boot=False,
    ),
)
