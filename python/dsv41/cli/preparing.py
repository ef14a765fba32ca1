"""What nodes need before their ranks start: the image, a made checkpoint, packed rows."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsv41 import chores, digests, images
from dsv41 import fleet as fleets
from dsv41.cli import build, planning
from dsv41.cli.parser import SET
from dsv41.errors import CheckFailed, Error
from dsv41.images import store
from dsv41.run import fleet

if TYPE_CHECKING:
    from dsv41.cli.talk import Talk
    from dsv41.host.reach import Host
    from dsv41.plan import Plan
    from dsv41.run.fleet import Crew

# what `plan` takes and the verbs of a fleet leave to the fleet file and the profile
_OF_THE_FILES: Mapping[str, object] = {
    "api_key_file": None,
    "eager": False,
    "image": None,
    "port": None,
    "reserve_gib": None,
    "set": [],
    "state_dir": None,
    "text_only": False,
    "tp": None,
    "tree": None,
}
_OF_THE_FLAGS = ("image", "port", "tree", "tp")


def made(args: Namespace) -> planning.Made:
    """The Plan of --profile on --fleet, with those of `_OF_THE_FLAGS` that are given."""
    given = vars(args)
    kept = {key: given[key] for key in _OF_THE_FLAGS if given.get(key) is not None}
    if given.get("api_key_file") is not None:
        kept["api_key_file"] = key_place(fleets.load(args.fleet))
    try:
        return planning.make(Namespace(**{**given, **_OF_THE_FILES, **kept}))
    except Error as error:
        if "--set " in error.fix:
            error.fix += f"; {SET}"
        raise


def key_place(found: fleets.Fleet) -> str:
    """Where the keys of --api-key-file lie on the head."""
    return f"{found.state_dir}/api-keys"


def pack(args: Namespace, talk: Talk) -> int:
    """Pack each rank's rows on its own node, all at once."""
    found = made(args)
    digests.require(found.plan.ranks[0].image, profile=found.plan.profile)
    if args.dry_run:
        for step in found.plan.steps:
            if step.id.startswith(("weights", "pack")):
                talk.put(f"step {step.id} on {step.node}: {' '.join(step.command)}")
        return 0
    crew = fleet.Crew.of(found.fleet)
    try:
        rows = carry_out(crew, found.plan, talk)
    finally:
        crew.close()
    if args.json:
        names = [node.name for node in found.fleet.nodes]
        nodes = [{"node": n, "files": f} for n, f in zip(names, rows, strict=True)]
        talk.document("pack", nodes=nodes)
    else:
        for node, files in zip(found.fleet.nodes, rows, strict=True):
            for file in files:
                talk.put(f"{node.name}  {file}")
    return 0


def image(args: Namespace, found: planning.Made, crew: Crew, talk: Talk) -> None:
    """Bring the image to the nodes that lack it; the error of `build` when that fails."""
    reference = digests.require(found.plan.ranks[0].image, profile=found.plan.profile)

    def lacks(rank: int, host: Host) -> str | None:
        program = found.fleet.container_of(rank)
        folder = store.folder_in(found.fleet.state_dir)
        target = images.Target(host=host, program=program, folder=folder, reference=reference)
        return None if images.survey(target, None).present else host.name

    missing = [name for name in crew.each(lacks) if name]
    if not missing:
        return
    talk.say(f"the image is missing on {', '.join(missing)}: dsv41 build")
    asked = {"plan": None, "rank": None, "source": None, "tree": None, "node": missing}
    status = build.build(
        Namespace(**{**vars(args), **asked, "image": reference, "dry_run": False, "json": False}),
        talk,
    )
    if status:
        raise CheckFailed(
            "D434",
            f"The image did not come to {', '.join(missing)}: build ended with {status}.",
            fix=f"dsv41 build --profile {args.profile} --fleet {args.fleet}",
        )


def carry_out(crew: Crew, plan: Plan, talk: Talk) -> list[list[str]]:
    """Make the checkpoint where the image makes it, pack the rows; each rank's row files.

    What is there stays. The Plan lies beside that of a service which may run.
    """
    file = str(crew.run.path / "chores.json")

    def one(rank: int, host: Host) -> list[str]:
        crew.install(host)
        host.ask(["mkdir", "-p", *fleet.folders(crew.fleet, plan, rank)], sudo=True)
        host.put(plan.to_json().encode(), file, sudo=True)
        which = ("--plan", file, "--rank", str(rank))
        if chores.weights(plan, plan.ranks[rank]) is not None:
            _run(crew, host, talk, "weights", "rank", "weights", *which)
        said = _run(crew, host, talk, "pack", "pack", *which)
        return [line for line in said if line.endswith(".rows")]

    began = time.monotonic()
    with talk.waiting("weights and rows of every node"):
        found = crew.each(one)
    talk.say(f"weights and rows are there after {time.monotonic() - began:.0f} s")
    return found


def _run(crew: Crew, host: Host, talk: Talk, what: str, *words: str) -> list[str]:
    said: list[str] = []

    def heard(line: str) -> None:
        said.append(line)
        if not line.endswith(".rows"):
            talk.log(f"{host.name}  {line}")

    status = fleet.streamed(crew, host, *words, heard=heard)
    if status:
        reasons = [line for line in said if line.strip() and not line.lstrip().startswith("fix")]
        raise fleet.failed(host, what, status, reasons[-1] if reasons else "")
    return said
