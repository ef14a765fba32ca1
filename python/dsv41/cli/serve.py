"""`dsv41 serve`: start the service, wait until it answers, follow its log."""

from __future__ import annotations

import shlex
import time
import zlib
from argparse import Namespace

from dsv41 import host, observe, run
from dsv41.cli import planning, verbs
from dsv41.cli.service import follow, show_logs
from dsv41.cli.talk import Talk
from dsv41.errors import INTERRUPTED, EngineFailed
from dsv41.plan import Plan
from dsv41.profile import Profile

START_SECONDS = 120.0  # a cold start reads torch and the tables from disk once a rank
USUAL_START = "usually 5 to 15 s, longer on a busy machine"
POLL = 0.1  # seconds between two looks at /ready


def serve(args: Namespace, talk: Talk) -> int:
    """Start the service, wait until it answers, then follow its log (or return, with --detach).

    From the moment the ranks start, Ctrl-C leaves them running and a TERM stops them.
    """
    if args.dry_run:
        verbs.show_steps(verbs.make_plan(args)[1], talk)
        return 0
    chosen, plan = verbs.make_plan(args, master_port=_meeting_port(args))
    state = run.RunDir.of(plan.state_dir)
    _check_keys(args)
    interrupted = INTERRUPTED  # until it is ready, Ctrl-C cuts the command short
    try:
        with host.term_raises():
            started = _start(args, chosen, plan, talk)
            _wait_ready(state, plan, talk)
            interrupted = 0  # before anybody can read that it is ready, and send a Ctrl-C
            _announce(args, state, plan, talk, seconds=round(time.monotonic() - started, 2))
            return 0 if args.detach else _attach(state, plan, talk)
    except KeyboardInterrupt:
        if state.supervisor() is None:
            raise  # nothing was started yet
        talk.say(f"detached; the service goes on at {plan.url}")
        talk.say(f"follow it with: dsv41 logs --follow --state-dir {shlex.quote(plan.state_dir)}")
        talk.say(f"stop it with: {_stop_command(plan)}")
        return interrupted
    except host.Terminated:
        talk.say(f"asked to stop: {run.stop_service(plan.state_dir)}")
        return 0


def _meeting_port(args: Namespace) -> int:
    """Where the ranks meet: a free port of the state folder's own, so that two starts differ."""
    offset = zlib.crc32(str(args.state_dir.absolute()).encode()) % 4000
    return host.free_port("127.0.0.1", 20000 + offset)


def _check_keys(args: Namespace) -> None:
    """Refuse a bad key file before anything is made or started."""
    from dsv41.local.http import keys  # noqa: PLC0415 - only there with the local engine

    if args.api_key_file is not None:
        keys.read_keys(args.api_key_file)


def _start(args: Namespace, chosen: Profile, plan: Plan, talk: Talk) -> float:
    """Claim the state folder, make what is absent in it, start the ranks; when they started.

    The claim comes first: of two that start at once, one makes the files and the other is refused.
    """
    with run.claim(plan) as lock:
        host.refuse_taken_port("127.0.0.1", planning.local_port(args))
        verbs.load_local_engine()
        verbs.prepare_state(args.state_dir.absolute(), chosen, talk)
        started = time.monotonic()
        run.start_service(plan, lock)
    return started


def _announce(
    args: Namespace, state: run.RunDir, plan: Plan, talk: Talk, *, seconds: float
) -> None:
    """Say that it is ready, and what can be done next."""
    key = f" --api-key-file {shlex.quote(plan.api_key_file)}" if plan.api_key_file else ""
    talk.say(f"ready in {seconds} s; next: dsv41 smoke --url {plan.url}{key}")
    talk.say(f"stop it with: {_stop_command(plan)}")
    if not args.detach:
        talk.say("the logs follow; Ctrl-C leaves the service running")
    if args.json:
        talk.document(
            "serve",
            status="ready",
            url=plan.url,
            pid=state.supervisor(),
            digest=plan.digest,
            seconds=seconds,
            state_dir=plan.state_dir,
        )
    else:
        talk.put(f"ready {plan.url}")


def _wait_ready(state: run.RunDir, plan: Plan, talk: Talk) -> None:
    """Return when the service answers; EngineFailed with the ends of the logs otherwise."""

    def ready() -> bool:
        run.require_alive(state)
        return not observe.readiness(plan)

    waiting = f"starting {plan.profile}, ranks: {len(plan.ranks)}, {USUAL_START}"
    try:
        with talk.waiting(waiting):
            in_time = host.wait_until(ready, seconds=START_SECONDS, every=POLL)
    except EngineFailed:
        show_logs(state, plan, talk, lines=8)
        raise
    if not in_time:
        wrong = observe.readiness(plan)
        show_logs(state, plan, talk, lines=8)
        run.stop_service(plan.state_dir)
        raise EngineFailed(
            "D066",
            f"The service was not ready within {START_SECONDS:.0f} s ({wrong}); it was stopped.",
            fix=f"read the logs: dsv41 logs --state-dir {shlex.quote(plan.state_dir)}",
        )


def _attach(state: run.RunDir, plan: Plan, talk: Talk) -> int:
    """Follow the logs until the service ends; its exit status."""
    follow(state, talk, [None, *range(len(plan.ranks))])
    ended = state.ended()
    talk.say(f"the service has ended: {ended.get('says', 'its supervisor was killed')}")
    return int(ended.get("exit", EngineFailed.exit_status))


def _stop_command(plan: Plan) -> str:
    return f"dsv41 stop --state-dir {shlex.quote(plan.state_dir)}"
