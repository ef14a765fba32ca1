"""Link named distributions of a virtual environment, and all that they require, into $out.

Environment: `site` (its site-packages), `roots` (names, by blanks), `locked` (JSON: name ->
version, or null), `sitePackages` (where to below `out`). A requirement that is not installed, not
locked, or locked in another version is an error: what is linked is then exactly what a build from
the lock would hold.
"""

import json
import os
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

site = Path(os.environ["site"])
sys.path.append(str(site))
from packaging.requirements import Requirement  # noqa: E402  (comes from the site itself)


def normalized(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(roots: list[str], installed: dict[str, Distribution]) -> dict[str, Distribution]:
    """Return the roots and what they require on this interpreter, by normalized name."""
    found: dict[str, Distribution] = {}
    todo = [Requirement(root) for root in roots]
    while todo:
        requirement = todo.pop()
        name = normalized(requirement.name)
        if name in found:
            continue
        if name not in installed:
            sys.exit(f"{name} is not in {site}: run make setup")
        found[name] = installed[name]
        for text in found[name].requires or []:
            needed = Requirement(text)
            extras = [{"extra": extra} for extra in requirement.extras or [""]]
            if needed.marker is None or any(needed.marker.evaluate(e) for e in extras):
                todo.append(needed)
    return found


def check_lock(found: dict[str, Distribution], locked: dict[str, str]) -> None:
    """Refuse a distribution whose version is not the locked one."""
    wrong = [
        f"{name} {distribution.version} (locked: {locked.get(name, 'no')})"
        for name, distribution in sorted(found.items())
        if locked.get(name) != distribution.version
    ]
    if wrong:
        sys.exit("the virtual environment differs from poetry.lock: " + ", ".join(wrong))


def top_level(distribution: Distribution) -> set[str]:
    """Return the entries of site-packages that belong to a distribution."""
    tops = {file.parts[0] for file in distribution.files or []}
    return {top for top in tops if top not in {"..", "__pycache__"} and (site / top).exists()}


def main() -> None:
    """Link."""
    installed = {normalized(d.name): d for d in distributions(path=[str(site)])}
    found = closure(os.environ["roots"].split(), installed)
    locked = json.loads(os.environ["locked"])
    if locked is not None:
        check_lock(found, locked)
    target = Path(os.environ["out"]) / os.environ["sitePackages"]
    target.mkdir(parents=True)
    for top in sorted(set().union(*map(top_level, found.values()))):
        (target / top).symlink_to(site / top)


main()
