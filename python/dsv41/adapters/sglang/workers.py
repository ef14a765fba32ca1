"""Refuses the two ways of serving in which SGLang answers from processes that load no plugin.

SGLang calls `load_plugins` in `launch_server`, in `Engine` and in every scheduler (0.5.21 and
0.5.23; the detokenizer of 0.5.23 too). It does not in the HTTP workers that
`--tokenizer-worker-num` above 1 starts, nor can a hook reach the Rust server of
SGLANG_RUST_SERVER. There requests would be answered without keys, caps and aliases, in silence.
"""

from __future__ import annotations

from typing import Any

from dsv41.adapters.adapter import Hook
from dsv41.errors import CheckFailed


def require_python_server(tokenizer_workers: int, *, rust_server: bool) -> None:
    """CheckFailed D141 unless one process with plugins serves HTTP."""
    if tokenizer_workers > 1:
        says = f"--tokenizer-worker-num is {tokenizer_workers}; its workers load no plugin."
        raise CheckFailed("D141", says, fix="leave --tokenizer-worker-num at 1")
    if rust_server:
        says = "SGLANG_RUST_SERVER is on; its server runs no Python hook."
        raise CheckFailed("D141", says, fix="unset SGLANG_RUST_SERVER")


def _before_check(server_args: Any) -> None:
    from sglang.srt.environ import envs  # noqa: PLC0415 - only the engine has it

    try:
        rust = bool(envs.SGLANG_RUST_SERVER.get())
        require_python_server(server_args.tokenizer_worker_num, rust_server=rust)
    except CheckFailed as error:
        raise SystemExit(f"dsv41: {error}\ndsv41: to mend it: {error.fix}") from error


HOOKS = (
    Hook(
        target="sglang.srt.server_args.ServerArgs.check_server_args",
        kind="before",
        call=_before_check,
    ),
)
