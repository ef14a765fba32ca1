"""Other programs on the node: memory watchdogs, large processes, versions; and the key file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsv41.doctor.check import Case, FleetCheck, NodeCheck, NoEvidence, Verdict
from dsv41.doctor.readings import GIB, KIB, gib, memory, pairs, sizes

# the smallest MemAvailable of a serving profile that users reported (P07): 1.5 to 6 GiB
LEAST_HEADROOM = GIB * 3 // 2
_KNOWN = re.compile(r"earlyoom|oomd|nohang|anti-oom", re.IGNORECASE)
_OFF = re.compile(r"\b(?:inactive|dead|failed|disabled|not-found|masked|unknown|not running)\b")
_RUNS = re.compile(r"\bactive\b|\[\d{1,10}\]:", re.IGNORECASE)
_PERCENT = re.compile(
    r"(?:-m[ =]?|mem avail(?:able)? ?<?=? *)(\d{1,3}(?:\.\d{1,4})?)\b(?!\s*[KMG])"
)
_KIBYTES = re.compile(r"-M[ =]?(\d{1,12})")
_LOWER = (
    "EARLYOOM_ARGS=\"-m {} --avoid 'python|sglang|vllm'\" in /etc/default/earlyoom, then "
    "sudo systemctl restart earlyoom (or: sudo systemctl disable --now earlyoom)"
)
_DEFAULT_PERCENT = 10.0  # earlyoom without -m


def watchdogs(case: Case) -> Iterator[Verdict]:
    """A watchdog whose floor is above what the plan leaves ends the engine when it is ready."""
    lines = case.text("services").splitlines()
    found = [v for line in lines if _state(line) == "active" and (v := _watchdog(case, line))]
    yield from found
    if silent := [line.split()[0] for line in lines if line.strip() and not _state(line)]:
        yield Verdict(
            level="unknown",
            says=f"systemctl gives no state of {', '.join(silent)}: systemd does not run there.",
            fix=f"on {case.name}: pgrep -af 'earlyoom|oomd|nohang|anti-oom'",
        )
        return
    if not _KNOWN.search(case.text("services")):
        yield Verdict(level="info", says="The probe names no memory watchdog, running or not.")
    elif not found:
        yield Verdict(level="ok", says="No memory watchdog runs.")


def _state(line: str) -> str:
    """The state of a unit in `unit<TAB>state<TAB>arguments`; empty when systemctl gave none.

    Another line tells of a running program when it says so, or is of its own log (`name[pid]:`).
    """
    unit, tab, rest = line.partition("\t")
    if tab or len(unit.split()) == 1:
        return rest.partition("\t")[0].strip().lower()
    return "active" if _RUNS.search(line) and not _OFF.search(line.lower()) else "inactive"


def _watchdog(case: Case, line: str) -> Verdict | None:
    lowered = line.lower()
    if "earlyoom" in lowered or "nohang" in lowered:
        return _floor(case, line)
    if "anti-oom" in lowered:
        says = "dgx-anti-oom runs: it has killed engines every few minutes."
        return Verdict(level="warn", says=says, fix="sudo systemctl disable --now dgx-anti-oom")
    if "oomd" in lowered:
        says = "systemd-oomd runs; it ends only units with ManagedOOM set to kill."
        return Verdict(level="info", says=says)
    return None


def _floor(case: Case, line: str) -> Verdict:
    name = "earlyoom" if "earlyoom" in line.lower() else "nohang"
    floor = _floor_bytes(line, total=memory(case).total)
    room = case.expect.headroom_bytes or LEAST_HEADROOM
    says = f"{name} ends programs below {gib(floor)} of available memory"
    if floor < room:
        return Verdict(level="info", says=f"{says}; {gib(room)} stay while serving.")
    if case.expect.headroom_bytes is None:
        says += f"; serving nodes with {gib(room)} were reported"
        return Verdict(level="warn", says=f"{says}.", fix=_LOWER.format(1))
    percent = max(1, int(room / 2 / memory(case).total * 100))
    return Verdict(
        level="fail",
        says=f"{says}, the plan leaves {gib(room)}: it will end the engine.",
        fix=_LOWER.format(percent),
    )


def _floor_bytes(line: str, *, total: int) -> int:
    """The threshold of a watchdog's arguments or start message; the lower one when it has two."""
    floors = [int(float(n) / 100 * total) for n in _PERCENT.findall(line)[:1]]
    floors += [int(n) * KIB for n in _KIBYTES.findall(line)[:1]]
    floors += sizes(line)[:1]
    return min(floors) if floors else int(_DEFAULT_PERCENT / 100 * total)


def key_file(case: Case) -> Iterator[Verdict]:
    """The file with the API keys is for its owner alone and has a key in it."""
    words = re.findall(r"[-\w]+", case.text("key-file"))
    mode, count = _mode(words), _count(words)
    path = case.fleet.api_key_file or "the key file"
    if mode is None or count is None:
        raise NoEvidence("key-file has not mode and line count")
    if mode & 0o77:
        yield Verdict(
            level="fail",
            says=f"{path} has mode {mode:o}: others can read the API keys.",
            fix=f"sudo chmod 600 {path}",
        )
    if not count:
        fix = f"head -c 24 /dev/urandom | base64 | sudo tee {path}"
        yield Verdict(level="fail", says=f"{path} has no key in it.", fix=fix)
    if count and not mode & 0o77:
        yield Verdict(level="ok", says=f"{path} has {count} keys, mode {mode:o}.")


def _mode(words: list[str]) -> int | None:
    """An octal mode (600, 0600, 100600), or one as ls prints it."""
    for word in words:
        if re.fullmatch(r"[0-7]{3,6}", word):
            return int(word, 8) & 0o777
        if re.fullmatch(r"-[-rwxsStT]{9}", word):
            return sum(0o400 >> n for n, letter in enumerate(word[1:]) if letter not in "-ST")
    return None


def _count(words: list[str]) -> int | None:
    numbers = [word for word in words if word.isascii() and word.isdigit() and len(word) < 10]
    modes = [word for word in words if re.fullmatch(r"[0-7]{3,6}", word)]
    rest = numbers[1:] if modes and numbers and numbers[0] == modes[0] else numbers
    return int(rest[-1]) if rest else None


def wants_key(case: Case) -> Iterator[Verdict]:
    """Where a key file is configured, it has to be looked at on the head."""
    if case.has("key-file"):
        yield from key_file(case)
    elif case.rank == 0 and not case.fleet.api_key_file:
        yield Verdict(level="info", says="The fleet file has no api_key_file: no key is asked for.")
    elif case.rank == 0:
        why = case.capture.errors.get("key-file", "the bundle has no key-file")
        yield Verdict(
            level="unknown",
            says=f"Not checked: {case.fleet.api_key_file}; {why}.",
            fix=f"ls -l {case.fleet.api_key_file}",
            cause=case.cause("key-file"),
        )


def processes(case: Case) -> Iterator[Verdict]:
    """The largest programs; and cargo, for which an SGLang without its switch waits."""
    rows = [line.split(None, 2) for line in case.text("processes").splitlines()]
    found = [
        (int(r[1]) * KIB, r[2]) for r in rows if len(r) == 3 and r[1].isdigit() and len(r[1]) < 13
    ]
    if not found:
        raise NoEvidence("processes has no row")
    found.sort(reverse=True)
    words = ", ".join(f"{name.strip()} {gib(size)}" for size, name in found[:3])
    if any(name.strip() == "cargo" for _, name in found):
        yield Verdict(
            level="fail",
            says="cargo runs: the engine looks for a Rust toolchain and waits.",
            fix="set SGLANG_RUST_BUILD_MODE=never, then stop the engine on all nodes and "
            "start it again",
        )
    yield Verdict(level="ok", says=f"The largest programs: {words}.")


def versions(cases: tuple[Case, ...]) -> Iterator[Verdict]:
    """Driver, BIOS and container engine of the nodes; a slow state was tied to older ones."""
    found = {case.name: pairs(case, "versions") for case in cases}
    keys = sorted({key for versions in found.values() for key in versions} - {"product"})
    differ = [key for key in keys if len({v.get(key) for v in found.values()}) > 1]
    for key in differ:
        words = ", ".join(f"{name} {versions.get(key, 'none')}" for name, versions in found.items())
        says = f"The nodes differ in {key}: {words}."
        yield Verdict(
            level="warn", says=says, fix="bring all nodes to the newest of them (fwupdmgr, apt)"
        )
    if not differ:
        words = ", ".join(f"{key} {next(iter(found.values())).get(key)}" for key in keys)
        yield Verdict(level="ok", says=f"Equal on every node: {words or 'nothing known'}.")


CHECKS = (
    NodeCheck(
        code="D215",
        name="memory watchdogs",
        probes=("services", "meminfo"),
        judge=watchdogs,
        reports=("P07",),
        required=True,
    ),
    NodeCheck(code="D262", name="the API key file", probes=(), judge=wants_key, reports=("P71",)),
    NodeCheck(
        code="D263",
        name="large programs",
        probes=("processes",),
        judge=processes,
        reports=("P10", "P34"),
    ),
    FleetCheck(
        code="D229",
        name="versions of driver and firmware",
        probes=("versions",),
        judge=versions,
        reports=("P74", "P11"),
        partial=True,
    ),
)
