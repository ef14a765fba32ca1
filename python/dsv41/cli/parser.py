"""The tree of commands, each with its effect class."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from dsv41 import __version__
from dsv41.cli import build_parser, data_parser, rank_parser, service_parser
from dsv41.errors import UsageError

# where a value of `plan --set` goes to be served: all commands must find the same Plan
SET = "--set is for plan; else write it into a profile file: docs/howto/operate.md, Change a knob"
_BELOW_HOME = ".local/state/dsv41/local"
DEFAULT_STATE_DIR = Path.home() / _BELOW_HOME


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (?:.* )?--set\b", message)
        raise UsageError(
            "D001", f"{self.prog}: {message}.", fix=SET if unknown else f"{self.prog} --help"
        )


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The parsed command line; `verb` is the function to call. UsageError D001 on a wrong one."""
    words = sys.argv[1:] if arguments is None else arguments
    return build().parse_args(words or ["--help"])


def build() -> argparse.ArgumentParser:
    """The parser, which help, completion and the tests are made from as well."""
    parser = _Parser(
        prog="dsv41",
        description="Serve DeepSeek-V4.1-Flash on three or four DGX Sparks, "
        "or a tiny model of the same architecture on this machine (profile local).",
        epilog="Next: dsv41 serve --profile local · dsv41 smoke · dsv41 stop",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsv41 {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shared = service_parser.Shared(
        profile=_add_profile, state=_add_state, own=_add_own_state, key=_add_key
    )
    service_parser.add_serve(verbs, _verb, shared)
    _add_plan(verbs)
    service_parser.add_rest(verbs, _verb, shared)
    _add_data_verbs(verbs)
    build_parser.add(verbs, _verb)
    data_parser.add(verbs, _verb, state_dir=DEFAULT_STATE_DIR)
    _add_judges(verbs)
    _add_pins(verbs)
    _add_lock(verbs)
    rank_parser.add(verbs, verb=_verb, state_dir=_add_own_state)
    return parser


def _verb(
    verbs: Any, name: str, function: str, *, effect: str, says: str
) -> argparse.ArgumentParser:
    """A command; `function` names a module of `dsv41.cli` and a function in it."""
    text = f"{says} [{effect}]"
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text, allow_abbrev=False
    )
    parser.set_defaults(verb=_late(function))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _late(function: str) -> Callable[..., int]:
    module, name = function.split(".")

    def call(*arguments: Any) -> int:
        # imported when called: `rank exec` must start fast
        found: Callable[..., int] = getattr(import_module(f"dsv41.cli.{module}"), name)
        return found(*arguments)

    return call


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", metavar="P", help="a name or ./file.toml; default local, needed with --fleet"
    )
    parser.add_argument(
        "--tp", type=int, metavar="N", help="tensor-parallel ranks; default: the profile's"
    )
    _add_state(parser)


def _add_state(parser: argparse.ArgumentParser) -> None:
    """Without a default: `defaults` fills it in, once it is known whether there is a fleet."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="D",
        help=f"default ~/{_BELOW_HOME}; with --fleet the file's",
    )


def _add_own_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir", type=Path, default=DEFAULT_STATE_DIR, metavar="D", help="default %(default)s"
    )


def _add_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--api-key-file", type=Path, metavar="F", help="one key a line, mode 0600 or stricter"
    )


def _add_plan(verbs: Any) -> None:
    plan = _verb(
        verbs, "plan", "planning.plan", effect="offline", says="Say what would run and if it fits."
    )
    _add_profile(plan)
    _add_key(plan)
    plan.add_argument("--port", type=int, metavar="N", help="default 8888")
    plan.add_argument("--fleet", type=Path, metavar="F", help="where it is served: fleet.toml")
    plan.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="another value for a knob"
    )
    plan.add_argument("--tree", metavar="T", help="another engine build, as sglang-branch")
    plan.add_argument("--eager", action="store_true", help="no CUDA graphs (vLLM)")
    plan.add_argument("--text-only", action="store_true", help="no images (vLLM)")
    plan.add_argument("--image", metavar="REF", help="the engine's image, with its digest")
    plan.add_argument(
        "--reserve-gib", type=float, metavar="N", help="memory of other programs on every node"
    )
    plan.add_argument("--why", action="store_true", help="print every knob with its reason")
    plan.add_argument("--check", action="store_true", help="look at nodes that are this machine")
    shown = plan.add_mutually_exclusive_group()
    shown.add_argument("--example", metavar="P", help="print a fleet file for a profile")
    shown.add_argument("--diff", metavar="OTHER", help="what differs from a Plan or profile")
    shown.add_argument(
        "--format",
        choices=["docker", "podman", "systemd", "recipe"],
        help="what an engineer would paste or review",
    )
    shown.add_argument("--draw", choices=["memory", "map", "cables"], help="print a picture as SVG")


def _add_data_verbs(verbs: Any) -> None:
    pack = _verb(
        verbs, "pack", "packing.pack", effect="changes hosts", says="Pack each rank's Engram rows."
    )
    _add_profile(pack)
    pack.add_argument("--fleet", type=Path, metavar="F", help="on every node of this fleet file")
    pack.add_argument("--image", metavar="REF", help="with --fleet: the image, with its digest")
    pack.add_argument("--dry-run", action="store_true", help="print the files and write nothing")
    pack.add_argument("--plan", type=Path, metavar="FILE", help="pack for a rank of this Plan")
    pack.add_argument("--rank", type=int, metavar="N", help="with --plan: which rank")
    rows = verbs.add_parser(
        "rows", help="look at packed row files [reads hosts]", allow_abbrev=False
    )
    row_verbs = rows.add_subparsers(title="commands", metavar="COMMAND", required=True)
    verify = _verb(
        row_verbs, "verify", "verbs.rows_verify", effect="reads hosts", says="Check every byte."
    )
    inspect = _verb(
        row_verbs, "inspect", "verbs.rows_inspect", effect="reads hosts", says="Print a header."
    )
    take = _verb(
        row_verbs,
        "import",
        "verbs.rows_import",
        effect="changes hosts",
        says="Make row files of another project's packed shards.",
    )
    take.add_argument("files", nargs="+", type=Path, metavar="FILE", help="engram-l1-r0of3.bin ...")
    take.add_argument("--out", type=Path, required=True, metavar="DIR", help="where row files go")
    take.add_argument(
        "--checkpoint", type=Path, metavar="DIR", help="compare every row with it, and bind to it"
    )
    _add_rows_bench(row_verbs)
    verify.add_argument("files", nargs="+", type=Path, metavar="FILE")
    inspect.add_argument("file", type=Path, metavar="FILE")
    explain = _verb(
        verbs,
        "explain",
        "verbs.explain",
        effect="offline",
        says="Tell more about an error code, or what the engine plugin changes.",
    )
    explain.add_argument(
        "code", metavar="CODE", help="for example D063; `all` lists them; `adapters` the changes"
    )


def _add_rows_bench(verbs: Any) -> None:
    bench = _verb(
        verbs,
        "bench",
        "benching.rows_bench",
        effect="changes hosts",
        says="Measure lookups on a disk, with a file it makes and removes, against the goals.",
    )
    add = bench.add_argument
    add("--file", type=Path, metavar="FILE", help="a packed row file; default: make one and remove")
    add(
        "--folder", type=Path, default=Path(), metavar="DIR", help="where it is made; default: here"
    )
    add("--span", type=float, default=8.0, metavar="GIB", help="its size, least of --file (8)")
    add("--rounds", type=int, default=7, metavar="N", help="alternated rounds (7)")
    add("--seconds", type=float, default=2.0, metavar="S", help="of one run (2)")
    add("--with-fio", action="store_true", help="compare with fio in the same shapes")
    add("--force", action="store_true", help="also on a memory file system, or a small file")


def _add_judges(verbs: Any) -> None:
    doctor = _verb(
        verbs, "doctor", "judge.judge_fleet", effect="reads hosts", says="Judge every node."
    )
    doctor.add_argument("--fleet", type=Path, required=True, metavar="F", help="the fleet file")
    doctor.add_argument("--profile", required=True, metavar="P", help="a name or ./file.toml")
    doctor.add_argument("--image", metavar="REF", help="the image of all nodes; default the Plan's")
    doctor.add_argument("--all", action="store_true", help="show what is ok as well")
    source = doctor.add_mutually_exclusive_group()
    source.add_argument("--bundle", type=Path, metavar="DIR", help="judge captured text, offline")
    source.add_argument("--collect", type=Path, metavar="DIR", help="keep what the nodes said")
    cache = verbs.add_parser("cache", help="the compile caches of the nodes", allow_abbrev=False)
    cache_verbs = cache.add_subparsers(title="commands", metavar="COMMAND", required=True)
    clear = _verb(
        cache_verbs,
        "clear",
        "judge.clear_caches",
        effect="changes hosts",
        says="Remove every node's compile caches; stop the service first.",
    )
    clear.add_argument("--fleet", type=Path, required=True, metavar="F", help="the fleet file")
    clear.add_argument("--dry-run", action="store_true", help="list them and remove nothing")
    diagnose = _verb(
        verbs, "diagnose", "judge.judge_log", effect="offline", says="Name the cause in a log."
    )
    diagnose.add_argument("log", nargs="?", type=Path, metavar="LOG", help="a file, - for stdin")
    diagnose.add_argument(
        "--samples", type=Path, metavar="FILE", help="JSON lines of a running engine"
    )
    diagnose.add_argument("--profile", default="tp3", metavar="P", help="default tp3")


def _add_pins(verbs: Any) -> None:
    pins = _verb(verbs, "pins", "pins.show", effect="offline", says="List every pinned source.")
    inner = pins.add_subparsers(title="commands", metavar="COMMAND")
    verify = _verb(
        inner, "verify", "pins.verify", effect="reads hosts", says="Fetch and hash them all again."
    )
    verify.add_argument("names", nargs="*", metavar="NAME", help="these alone; see dsv41 pins")
    verify.add_argument("--mirror", metavar="URL", help="fetch URL/HOST/PATH instead")
    verify.add_argument("--dry-run", action="store_true", help="write nothing")
    # a default of the inner command would undo what stands before it
    for parser, default in ((pins, None), (verify, argparse.SUPPRESS)):
        parser.add_argument(
            "--root", type=Path, default=default, metavar="DIR", help="a checkout of dsv41"
        )


def _add_lock(verbs: Any) -> None:
    lock = _verb(
        verbs,
        "lock-engine",
        "locking.lock_engine",
        effect="reads hosts",
        says="Make the package locks of the engine images.",
    )
    lock.add_argument("--check", action="store_true", help="look at the committed locks, offline")
    lock.add_argument(
        "--index", action="store_true", help="with --check: resolve again and compare (needs uv)"
    )
    lock.add_argument("--until", metavar="TIME", help="as of YYYY-MM-DDTHH:MM:SSZ, not the lock's")
    lock.add_argument("--dry-run", action="store_true", help="say what would change")
    lock.add_argument("--root", type=Path, metavar="DIR", help="a checkout of dsv41")
