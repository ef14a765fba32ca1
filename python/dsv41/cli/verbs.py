"""One function a command: parse nothing, decide nothing, call a room and show what it gives."""

from __future__ import annotations

import shlex
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dsv41 import host, profile
from dsv41 import plan as plans
from dsv41.cli import defaults
from dsv41.cli.planning import local_fleet
from dsv41.cli.talk import Talk
from dsv41.errors import CheckFailed, UsageError, explanations
from dsv41.geometry import REAL_ENGRAM

if TYPE_CHECKING:
    from types import ModuleType

    from dsv41.rows.files import Problem


def make_plan(args: Namespace, *, master_port: int = 20000) -> tuple[profile.Profile, plans.Plan]:
    """The profile and Plan that the flags ask for."""
    chosen = local_profile(args, "serve")
    fleet = local_fleet(args, chosen, master_port=master_port)
    return chosen, plans.plan(chosen, fleet, {})


def local_profile(args: Namespace, command: str) -> profile.Profile:
    """The profile that the flags ask for; UsageError D002 unless it is one for this machine."""
    chosen = profile.load(args.profile)
    named = shlex.quote(args.profile)
    defaults.require_local(chosen, fix=f"dsv41 {command} --profile {named} --fleet fleet.toml")
    return chosen.with_values("--tp", tp=args.tp)


def show_steps(made: plans.Plan, talk: Talk) -> None:
    """The steps of a Plan, a line each."""
    for step in made.steps:
        talk.put(f"step {step.id} on {step.node} [{step.effect}]: {' '.join(step.command)}")


def pack(args: Namespace, talk: Talk) -> int:
    """Make the tiny checkpoint if absent and pack every rank's rows."""
    chosen = local_profile(args, "pack")
    prepare = load_local_engine()
    if args.dry_run:
        files = prepare.row_files(
            args.state_dir, tp=chosen.integer("tp"), partition=str(chosen["partition"])
        )
    else:
        files = prepare_state(args.state_dir, chosen, talk)
    if args.json:
        talk.document("pack", files=[str(file) for file in files])
    else:
        for file in files:
            talk.put(str(file))
    return 0


def prepare_state(state_dir: Path, chosen: profile.Profile, talk: Talk) -> list[Path]:
    """The checkpoint and row files that a local service needs, made where absent."""
    host.make_folder(state_dir)
    files: list[Path] = load_local_engine().prepare(
        state_dir, tp=chosen.integer("tp"), partition=str(chosen["partition"]), say=talk.say
    )
    return files


def load_local_engine() -> ModuleType:
    """The local engine's preparation; UsageError D004 when its packages are not installed."""
    try:
        from dsv41.local.fixture import prepare  # noqa: PLC0415 - torch is only there with the extra
    except ModuleNotFoundError as error:
        raise UsageError(
            "D004",
            f"The local engine needs the package {error.name}, which this Python does not have.",
            fix="make setup, or pip install 'dsv41[local]' torch==2.13.0 ./csrc",
        ) from error
    return prepare


def rows_verify(args: Namespace, talk: Talk) -> int:
    """Check every byte of row files."""
    from dsv41 import rows  # noqa: PLC0415 - needs the row-store extension

    results = rows.verify(args.files)
    failed = [result for result in results if not result.ok]
    if args.json:
        status = "fail" if failed else "ok"
        talk.document("rows-verify", status=status, files=[asdict(result) for result in results])
    else:
        for result in results:
            talk.put(f"{'ok' if result.ok else 'BAD':4}{result.path}  {result.rows} rows")
            for problem in result.problems:
                talk.put(f"    {_place(problem)}{problem.says}")
            if result.problem_count > len(result.problems):
                talk.put(f"    and {result.problem_count - len(result.problems)} more")
    return CheckFailed.exit_status if failed else 0


def _place(problem: Problem) -> str:
    """Where in a row file it is; nothing for the header or the file as a whole."""
    page = f"page {problem.page}" if problem.page >= 0 else ""
    row = f"row {problem.row}" if problem.row >= 0 else ""
    where = " ".join(filter(None, (page, row)))
    return f"{where}: " if where else ""


def rows_import(args: Namespace, talk: Talk) -> int:
    """Make row files of packed shards of other projects, compared with a checkpoint if given."""
    from dsv41 import rows  # noqa: PLC0415 - needs the row-store extension

    engram = rows.geometry_of(args.checkpoint) if args.checkpoint else REAL_ENGRAM
    made = []
    for path in args.files:
        with talk.waiting(f"importing {path.name}"):
            made.append(
                rows.import_shard(path, out=args.out, engram=engram, checkpoint=args.checkpoint)
            )
    if args.checkpoint is None:
        talk.say("not compared with a checkpoint; give --checkpoint to bind the files to one")
    if args.json:
        talk.document("rows-import", files=[str(path) for path in made])
    else:
        for path in made:
            talk.put(str(path))
    return 0


def rows_inspect(args: Namespace, talk: Talk) -> int:
    """Print the header of a row file."""
    from dsv41 import rows  # noqa: PLC0415 - needs the row-store extension

    header = asdict(rows.inspect(args.file))
    if args.json:
        talk.document("rows-inspect", **header)
    else:
        for name, value in header.items():
            talk.put(f"{name}: {value}")
    return 0


def explain(args: Namespace, talk: Talk) -> int:
    """Tell more about an error code, or what the engine plugin changes."""
    if args.code == "adapters":
        return _explain_adapters(args, talk)
    known = explanations()
    wanted = list(known) if args.code == "all" else [args.code.upper()]
    if wanted[0] not in known:
        raise UsageError("D005", f"There is no code {args.code!r}.", fix="dsv41 explain all")
    found = [known[code] for code in wanted]
    if args.json:
        talk.document("explain", codes=[asdict(entry) for entry in found])
        return 0
    for entry in found:
        talk.put(f"{entry.code}  {entry.title}")
        if args.code != "all":
            talk.put(f"\n{entry.text}")
    return 0


def _explain_adapters(args: Namespace, talk: Talk) -> int:
    from dsv41 import changes  # noqa: PLC0415 - keeps the other commands light

    if args.json:
        talk.document("adapters", adapters=changes.described())
        return 0
    for line in changes.lines():
        talk.put(line)
    return 0


def supervise(args: Namespace, _talk: Talk) -> int:
    """Watch the ranks of a Plan; holds the inherited lock until the end."""
    from dsv41 import run  # noqa: PLC0415 - keeps the other commands light

    return run.supervise(run.read_plan(args.plan), lock_fd=args.lock_fd)
