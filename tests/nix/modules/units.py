"""The rank's unit of the module is the one that `dsv41 plan --format systemd` prints.

Usage: units.py TEXT JSON; TEXT is what plan prints, JSON the unit's settings in the module.
"""

import json
import sys
from pathlib import Path

# a unit of a store path runs another command; credentials and mounts are NixOS's own
OWN = {"ExecStart", "LoadCredential", "RequiresMountsFor"}


def printed(text: str) -> dict[str, str]:
    """The settings of the first node's dsv41-rank.service."""
    unit = text.split("/dsv41-rank.service\n", 1)[1].split("\n\n", 1)[0]
    lines = [line for line in unit.splitlines() if "=" in line]
    settings = dict(line.split("=", 1) for line in lines)
    return {k: v for k, v in settings.items() if k[0].isupper()}


def main() -> None:
    """Exit with the settings that differ."""
    wanted = printed(Path(sys.argv[1]).read_text())
    found = {k: str(v) for k, v in json.loads(sys.argv[2]).items() if k not in OWN}
    elsewhere = {"Description", "Requires", "After", "Wants", "WantedBy", "ExecStart"}
    wanted = {k: v for k, v in wanted.items() if k not in elsewhere}
    if wanted != found:
        sys.exit(f"plan prints {sorted(wanted.items())}, the module has {sorted(found.items())}")


main()
