"""An exporter container that another launcher started: reused, never rewritten unasked.

Its /etc/exports is in the container's own layer: it is there after a reboot, and gone when the
container is made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv41.errors import CheckFailed, Unsafe
from dsv41.share.texts import clients, export_line

if TYPE_CHECKING:
    from dsv41.fleet import Fleet
    from dsv41.share.state import Exporter


def rewritten(
    fleet: Fleet, server: int, exporter: Exporter, *, node: str, allowed: bool
) -> str | None:
    """Its exports as they must be; None when they are.

    Raises CheckFailed D465 when it does not hold the checkpoint, Unsafe D467 when rewriting its
    exports was not allowed.
    """
    if exporter.inside is None:
        raise CheckFailed(
            "D465",
            f"The container {exporter.name} on {node} exports other folders than "
            f"{fleet.nodes[server].model_dir}.",
            fix=f"{exporter.engine} stop {exporter.name} on {node}: the host's own server is taken",
        )
    wanted = export_line(exporter.inside, clients(fleet, server))
    if exporter.exports == wanted:
        return None
    if not allowed:
        now = "; ".join(exporter.exports.splitlines()) or "nothing"
        raise Unsafe(
            "D467",
            f"The container {exporter.name} on {node} exports: {now}. It would become: {wanted}.",
            fix=f"dsv41 share --rewrite-exporter; or {exporter.engine} stop {exporter.name} on "
            f"{node}, and the host's own server is taken",
        )
    return wanted + "\n"
