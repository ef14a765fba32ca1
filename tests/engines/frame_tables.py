"""The adapters that are for the release in this process: some are for the newer one alone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from dsv41.adapters.adapter import Adapter
from dsv41.adapters.table import TABLES as ALL

# the trees that the older release stands for; it is the one nearest to the recipes' branch
OLDER = {"sglang-branch", "sglang-base"}


def installed() -> str:
    """The version of SGLang here, nothing where only vLLM's files are."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return ""


def _for_this(adapter: Adapter) -> bool:
    return not installed().startswith("0.5.21") or bool(OLDER & set(adapter.trees))


TABLES = {
    engine: tuple(a for a in table if engine != "sglang" or _for_this(a))
    for engine, table in ALL.items()
}
SGLANG = TABLES["sglang"]
