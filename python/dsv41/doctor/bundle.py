"""A folder of captured probes: read it, or fill it from machines.

`collect` asks through a callable, so it reaches no machine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv41.doctor.probes import PROBES, commands
from dsv41.errors import Unreachable, UsageError
from dsv41.fleet import Fleet, Node

Run = Callable[[Node, str], tuple[int, str, str]]
_GONE = "unreachable.err"  # beside the probes: why the node is not asked any more
LARGEST = 32 << 20  # bytes of one probe that are read; the end of a longer file


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What was captured of one node: probe -> output, and probe -> why there is none.

    `unreachable` is why the node stopped answering, empty when it did not.
    """

    texts: Mapping[str, str]
    errors: Mapping[str, str]
    unreachable: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """The captures of a fleet by node name, and folders that belong to no node of it."""

    captures: Mapping[str, Capture]
    strangers: tuple[str, ...] = ()

    def of(self, node: str) -> Capture:
        """The capture of a node; empty when nothing was captured."""
        return self.captures.get(node, Capture(texts={}, errors={}))


def read(folder: Path, fleet: Fleet) -> Bundle:
    """The bundle in a folder. UsageError D200 when it is none, or has none of the fleet's nodes."""
    names = {node.name for node in fleet.nodes}
    try:
        found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise _no_bundle(folder, f"{error.strerror or error}") from error
    known = [name for name in found if name in names]
    if not known:
        raise _no_bundle(folder, f"it has none of the nodes {', '.join(sorted(names))}")
    return Bundle(
        captures={name: _capture(folder / name) for name in known},
        strangers=tuple(name for name in found if name not in names),
    )


def _no_bundle(folder: Path, why: str) -> UsageError:
    return UsageError(
        "D200",
        f"{folder} is no bundle of this fleet: {why}.",
        fix=f"dsv41 doctor --fleet FLEET --profile PROFILE --collect {folder}",
    )


def _capture(folder: Path) -> Capture:
    texts: dict[str, str] = {}
    errors: dict[str, str] = {}
    for probe in PROBES:
        text, why = _text(folder / f"{probe.name}.txt")
        said, _ = _text(folder / f"{probe.name}.err")
        if text is not None:
            texts[probe.name] = text
        elif said is not None or why:
            errors[probe.name] = (said or why).strip()
    gone, _ = _text(folder / _GONE)
    return Capture(texts=texts, errors=errors, unreachable=(gone or "").strip())


def _text(path: Path) -> tuple[str | None, str]:
    """The end of a file as text, and why there is none (empty when it does not exist)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LARGEST))
            return file.read().decode("utf-8", "replace"), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path.name}: {error.strerror}"


def collect(run: Run, fleet: Fleet, out_dir: Path, *, probes: frozenset[str] | None = None) -> None:
    """Capture every probe of every node into `out_dir`/NODE/PROBE.txt, or .err with the reason.

    `run(node, command)` gives exit status, output and errors of a shell command on a node; it
    raises Unreachable or OSError when the node does not answer, which ends the asking of that node.
    With `probes` only these are asked. What an earlier capture left of a probe is removed, so that
    nothing old counts as evidence.
    """
    for rank, node in enumerate(fleet.nodes):
        if Path(node.name).name != node.name:
            raise _no_bundle(out_dir, f"the node name {node.name!r} is no folder name")
        folder = out_dir / node.name
        folder.mkdir(parents=True, exist_ok=True)
        gone = ""
        asked = commands(fleet, rank)
        for name in asked if probes is None else [name for name in asked if name in probes]:
            text, said = None, gone
            if not gone:
                text, said, gone = _ask(run, node, asked[name])
            _write(folder, name, text, said)
        (folder / _GONE).unlink(missing_ok=True)
        if gone:
            (folder / _GONE).write_text(gone + "\n", encoding="utf-8")


def _ask(run: Run, node: Node, command: str) -> tuple[str | None, str, str]:
    """The output or None, what was said about it, and why the node is not asked again."""
    try:
        status, output, errors = run(node, command)
    except (Unreachable, OSError) as error:
        why = error.says if isinstance(error, Unreachable) else f"{error}."
        says = f"{node.name} does not answer: {why}"
        return None, says, says
    if status == 0:
        return output, errors, ""
    return None, f"exit status {status}: {errors.strip() or output.strip()}", ""


def _write(folder: Path, name: str, text: str | None, said: str) -> None:
    there, error = folder / f"{name}.txt", folder / f"{name}.err"
    if text is None:
        there.unlink(missing_ok=True)
        error.write_text(said + "\n", encoding="utf-8")
    else:
        error.unlink(missing_ok=True)
        there.write_text(text, encoding="utf-8")
