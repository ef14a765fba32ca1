"""Known failures of memory, weights, rows and engine code (user reports A1, A3, A4)."""

from __future__ import annotations

import re

from dsv41.diagnose import fixes
from dsv41.diagnose.pattern import Pattern

CAUSES = (
    Pattern(
        code="D331",
        line=re.compile(
            r"Driver/library version mismatch|could not select device driver"
            r"|unresolvable CDI devices"
        ),
        says="The container got no GPU: the driver changed under a running kernel, or there is "
        "no CDI "
        "specification.",
        fix="sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; after a driver update: "
        "sudo reboot",
        reports=("P77", "P78", "P79"),
    ),
    Pattern(
        code="D311",
        line=re.compile(
            r"exceeds device memory budget|Free memory on device.{0,80}less than desired"
            r"|free memory.{0,60}less than desired"
        ),
        says="The GPU counts page cache as used memory, so a start right after copying or "
        "hashing weights fails.",
        fix=fixes.DROP_CACHES,
        reports=("P04",),
    ),
    Pattern(
        code="D312",
        line=re.compile(
            r"CUDA out of memory|torch\.OutOfMemoryError|no room .{0,60}within the available"
            r"|No available memory for the cache blocks|KV cache is needed, which is larger than"
            r"|Not enough memory\. Please try"
        ),
        says="Weights, KV pool and buffers do not fit the memory that is free on this node.",
        fix=f"end other programs on the node or lower the pool; the ledger: {fixes.LEDGER}",
        boot=False,
        reports=("P10",),
    ),
    Pattern(
        code="D324",
        line=re.compile(r"HFValidationError|Repo id must (?:be|use)"),
        says="The model folder is not there inside the container, so its path was taken for a "
        "repository id: "
        "links lead out of the mount.",
        fix="cp -rlL MODEL_DIR MODEL_DIR.plain and set model_dir to it (hard links, no copy)",
        reports=("P38",),
    ),
    Pattern(
        code="D326",
        line=re.compile(
            r"packed Engram shard (?:has no header|does not match|is truncated)"
            r"|Engram retrieval failed|engram disk table: short read"
        ),
        says="A packed Engram file is missing, cut or of another rank.",
        fix="pack the rows of that node again: dsv41 doctor --profile PROFILE --fleet FLEET "
        "prints the command",
        boot=False,
        restart=False,
        reports=("P40",),
    ),
    Pattern(
        code="D325",
        line=re.compile(r"engram target-verify expects one equal block per request"),
        says="A DSpark SPS table makes verification ragged, and Engram needs equal blocks.",
        fix="take sps_table out of the fleet file",
        boot=False,
        reports=("P41",),
    ),
    Pattern(
        code="D329",
        line=re.compile(r"Check failed: num_tokens > 64|no decode kernel|missing instantiation"),
        says="FlashInfer has no kernel for this head count or page size.",
        fix="use the image of the profile: its FlashInfer has the shapes for 16 and 32 local heads",
        boot=False,
        reports=("P50",),
    ),
    Pattern(
        code="D330",
        line=re.compile(r"Unknown attention backend|unrecognized arguments:|invalid choice:"),
        says="This engine does not know a flag: the image is another one than the profile was "
        "made for.",
        fix="pull the image that the profile was made for, by its digest, on every node",
        restart=False,
        reports=("P49",),
    ),
    Pattern(
        code="D328",
        line=re.compile(r"either `?inf`?, `?nan`? or element < 0|kv_canary violation"),
        says="The model's output is not a number: expandable_segments:True or the hierarchical "
        "cache on SGLang.",
        fix="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False and leave "
        "--enable-hierarchical-cache out",
        boot=False,
        reports=("P51", "P53"),
    ),
    Pattern(
        code="D332",
        line=re.compile(r"DSpark currently requires uniform|device-side assert triggered"),
        says="Speculative decoding met a batch that this engine version cannot verify.",
        fix="serve with speculation off until the image is newer",
        boot=False,
        reports=("P87",),
    ),
    Pattern(
        code="D321",
        line=re.compile(
            r"(?:DistStoreError|seconds waiting for clients)"
            r"(?:.{0,160}?(\d{1,3})/(\d{1,3}) clients joined)?"
        ),
        says="Not all ranks came to the meeting point ({0} of {1}).",
        fix="see on every node whether its rank started (podman ps -a); diagnose the log of the "
        "one that did not",
        reports=("P32",),
    ),
    Pattern(
        code="D336",
        line=re.compile(r"cargo --version"),
        says="The engine looks for a Rust toolchain and waits.",
        fix="set SGLANG_RUST_BUILD_MODE=never",
        engines=("sglang",),
        reports=("P34",),
    ),
)
CONSEQUENCES = (
    Pattern(
        code="D322",
        line=re.compile(
            r"(?:scheduler died.{0,40}?exit code: |process.{0,40}exited with code )(-?\d{1,4})"
        ),
        says="A process of the engine ended (exit code {0}; -9 is the kernel's out-of-memory "
        "killer or a "
        "watchdog of the engine).",
        fix="read what comes before it; with -9 also: sudo dmesg | grep -i oom",
        boot=False,
        reports=("P06", "P32"),
    ),
    Pattern(
        code="D327",
        line=re.compile(
            r"Received sigquit from a child process|EngineCore (?:failed|encountered a fatal)"
        ),
        says="The engine ended because one of its processes did.",
        fix="the cause is further up in the log",
        boot=False,
    ),
    Pattern(
        code="D335",
        line=re.compile(
            r"[Ww]atchdog (?:timeout|caught)|Scheduler watchdog|collective operation timeout"
        ),
        says="A step took longer than the watchdog allows: one rank waits in a collective for "
        "another.",
        fix=f"{fixes.ALL_AGAIN}; diagnose the logs of all ranks",
        boot=False,
        reports=("P85",),
    ),
    Pattern(
        code="D334",
        line=re.compile(r"NV_ERR_NO_MEMORY|nvCheckOkFailedNoLog"),
        says="The driver's NV_ERR_NO_MEMORY line comes in healthy runs too: 3 of 4 good starts "
        "had it.",
        fix="",
        level="info",
        boot=False,
        reports=("P02",),
    ),
)
