"""The processes that SGLang serves from: which load the plugin, and what is refused or mended.

`load_plugins` runs in `launch_server` and `Engine`, where HTTP server and tokenizer manager live,
and in every scheduler; in the detokenizer it does in 0.5.23 and not in 0.5.21, so there it is
brought along. Two ways of serving answer from processes that load no plugin: the HTTP workers of
--tokenizer-worker-num above 1, and the Rust server of SGLANG_RUST_SERVER. Requests would be
answered without keys, caps and aliases, in silence; both are refused.
"""

from __future__ import annotations

from typing import Any

from dsv41.adapters.adapter import Hook
from dsv41.adapters.probe import MEND
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


def run_detokenizer_process(*args: Any, **kwargs: Any) -> None:
    """The engine's own function, after the plugins; the target of a spawned process."""
    from sglang.srt.managers import detokenizer_manager  # noqa: PLC0415 - only the engine has it
    from sglang.srt.plugins import load_plugins  # noqa: PLC0415 - likewise

    load_plugins()
    detokenizer_manager.run_detokenizer_process(*args, **kwargs)


def _with_plugins(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with our function for the engine's; SystemExit D143 when it has none."""
    from sglang.srt.managers import detokenizer_manager  # noqa: PLC0415 - only the engine has it

    stock = detokenizer_manager.run_detokenizer_process
    if not any(value is stock for value in (*args, *kwargs.values())):
        says = "D143 the detokenizer is started by a function that is not the engine's."
        raise SystemExit(f"dsv41: {says}\ndsv41: to mend it: {MEND}")
    swapped = {k: run_detokenizer_process if v is stock else v for k, v in kwargs.items()}
    return tuple(run_detokenizer_process if v is stock else v for v in args), swapped


HOOKS = (
    Hook(
        target="sglang.srt.server_args.ServerArgs.check_server_args",
        kind="before",
        call=_before_check,
    ),
    Hook(
        target="sglang.srt.entrypoints.engine.Engine._launch_detokenizer_subprocesses",
        kind="before",
        call=_with_plugins,
        takes=("run_detokenizer_process_func",),
    ),
)
