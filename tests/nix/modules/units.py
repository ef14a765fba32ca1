"""The units of the module are those that `dsv41 plan --format systemd` prints.

Usage: units.py TEXT JSON; TEXT is what plan prints, JSON maps a unit's name to its settings in the
module.
"""

import json
import sys
from pathlib import Path

# a unit of a store path runs another command; credentials and mounts are NixOS's own
OWN = {"ExecStart", "LoadCredential", "RequiresMountsFor", "WantsMountsFor"}


def printed(text: str, name: str) -> dict[str, str]:
    """The settings of the first node's unit."""
    unit = text.split(f"/{name}.service\n", 1)[1].split("\n\n", 1)[0]
    lines = [line for line in unit.splitlines() if "=" in line]
    settings = dict(line.split("=", 1) for line in lines)
    return {k: v for k, v in settings.items() if k[0].isupper()}


def main() -> None:
    """Exit with the settings that differ."""
    text = Path(sys.argv[1]).read_text()
    elsewhere = {"Description", "Requires", "After", "Wants", "WantedBy", "ExecStart"}
    for name, settings in json.loads(sys.argv[2]).items():
        wanted = {k: v for k, v in printed(text, name).items() if k not in elsewhere}
        found = {k: "yes" if v is True else str(v) for k, v in settings.items() if k not in OWN}
        if wanted != found:
            sys.exit(f"{name}: plan prints {sorted(wanted.items())}, not {sorted(found.items())}")


main()
