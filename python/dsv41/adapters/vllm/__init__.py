"""The changes to vLLM, one file each, and what vLLM's plugin loader calls."""

from __future__ import annotations


def register() -> None:
    """Entry point of `vllm.general_plugins`: installs what the environment asks for, or SystemExit.

    vLLM logs a plugin that cannot be imported and goes on, so nothing is imported before this.
    """
    try:
        from dsv41.adapters import install, table  # noqa: PLC0415 - see above
    except Exception as error:
        raise SystemExit(f"dsv41: D143 the plugin cannot be imported: {error!r}") from error
    install.register("vllm", table.VLLM)
