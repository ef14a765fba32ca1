"""The changes to SGLang, one file each, and what SGLang's plugin loader calls."""

from __future__ import annotations


def register() -> None:
    """Entry point of `sglang.srt.plugins`: installs what the environment asks for, or SystemExit.

    SGLang logs any exception of a plugin, an import that fails too, and goes on without it; only
    SystemExit ends the process. So nothing is imported before this.
    """
    try:
        from dsv41.adapters import install, table  # noqa: PLC0415 - see above
        from dsv41.adapters.sglang import workers  # noqa: PLC0415 - see above
    except Exception as error:
        raise SystemExit(f"dsv41: D143 the plugin cannot be imported: {error!r}") from error
    install.register("sglang", table.SGLANG, always=workers.HOOKS)
