"""Commands, files and streams on one machine: over the OpenSSH client, or here.

No ssh library: the owner's own configuration, keys, agents and known_hosts count, and a host key
that changed is an error here as it is in their shell. Nothing ever asks: BatchMode. All commands of
a host share one connection (ControlMaster), and a link that dies ends a command within
ALIVE_EVERY * ALIVE_COUNT seconds. A command runs below timeout(1) on its machine, which ends it
there when its time is over, also when the link is gone; one that is followed ends with its reader.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

from dsv41.errors import CheckFailed, EngineFailed, Error, Unreachable

T = TypeVar("T")
LOCAL = "local"
ALIVE_EVERY, ALIVE_COUNT = 5, 3
KILL_AFTER = 5.0  # seconds between the TERM and the KILL of a command whose time is over
GRACE = 15.0  # seconds more that the client gets to hear of it: one dead link
TIMED_OUT = (124, 137)  # of timeout(1): ended by the TERM, or by the KILL
LONGEST_LINE = 4096  # characters of one followed line
_SSH_FAILED = 255  # ssh(1): of its own errors; a command may end with it as well
_SSH_WORDS = ("ssh:", "Connection", "Permission denied", "Host key", "kex_exchange", "mux_client")
_LINK_WORDS = ("Timeout, server", "client_loop", "Shared connection", "Broken pipe")
# of sudo(8) and of a shell that has none; "unable to resolve host" is a warning, the command runs
_SUDO_REFUSES = re.compile(
    r"^(?:sudo: (?!unable to resolve host)|Sorry, user |\S+ is not (?:allowed|in the sudoers))"
    r"|sudo: (?:command )?not found",
    re.MULTILINE,
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# whole or not at all: a stream that was cut has fewer bytes than were announced
_PUT = (
    'set -e; d=$(dirname -- "$1"); mkdir -p -- "$d"; t=$(mktemp "$d/.put-XXXXXX"); '
    'trap \'rm -f -- "$t"\' EXIT; cat >"$t"; '
    '[ "$(stat -c %s -- "$t")" = "$3" ] || { echo "only part of it came" >&2; exit 1; }; '
    'chmod "$2" "$t"; mv -f -- "$t" "$1"; trap - EXIT'
)
# stdin stays open as long as somebody reads: its end, by close() or a lost link, ends the command.
# A shell gives a background command no stdin, so ours is kept as descriptor 3
_FOLLOW = (
    'exec 3<&0; setsid "$@" 3<&- </dev/null & c=$!; '
    "{ cat <&3 >/dev/null; kill -- -$c; } >/dev/null 2>&1 & w=$!; exec 3<&-; "
    "wait $c; s=$?; kill $w 2>/dev/null; exit $s"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """How a command ended: exit status, stdout and stderr as text."""

    status: int
    stdout: str
    stderr: str

    @property
    def last_word(self) -> str:
        """The last line that it wrote on stderr, for a message."""
        lines = [clean(line) for line in self.stderr.strip().splitlines()]
        return lines[-1] if lines else "it gave no reason"


def clean(line: str) -> str:
    """A line without escape sequences and control codes, at most LONGEST_LINE characters."""
    shown = line.rstrip("\r\n").rpartition("\r")[2]  # what a progress line shows last
    return _CONTROL.sub("", _ESCAPES.sub("", shown))[:LONGEST_LINE]


@dataclass(kw_only=True)
class Host:
    """One machine. `destination` is what ssh(1) takes, or `local`; `options` are words for ssh.

    `sudo`: commands that are asked with `sudo=True` run below `sudo -n`; elsewhere as they are.
    """

    name: str
    destination: str
    sudo: bool = False
    options: tuple[str, ...] = ()
    _folder: str | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def run(
        self,
        argv: Sequence[str],
        *,
        seconds: float = 60.0,
        stdin: bytes | BinaryIO | None = None,
        sudo: bool = False,
    ) -> Done:
        """Run a command to its end; any exit status is an answer.

        Raises:
            Unreachable: D068, when the host cannot be reached, refuses us or has another host key.
            EngineFailed: D411, when it is not done within `seconds`; it was ended over there.
            CheckFailed: D413, when sudo refuses.
        """
        timed = ["timeout", f"--kill-after={KILL_AFTER:g}", f"{seconds:g}", *argv]
        began = time.monotonic()
        try:
            done = subprocess.run(
                self._words(self._as(timed, sudo)),
                **_input(stdin),  # type: ignore[call-overload]
                capture_output=True,
                timeout=seconds + KILL_AFTER + GRACE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._late(argv, seconds) from error
        found = Done(
            status=done.returncode,
            stdout=done.stdout.decode(errors="replace"),  # a log may hold any bytes
            stderr=done.stderr.decode(errors="replace"),
        )
        self._require_reached(found)
        # a command may end so by itself: killed for memory, for one
        if found.status in TIMED_OUT and time.monotonic() - began >= seconds:
            raise self._late(argv, seconds)
        if sudo and self.sudo and found.status and _SUDO_REFUSES.search(found.stderr):
            raise self._no_sudo(found)
        return found

    def ask(
        self,
        argv: Sequence[str],
        *,
        seconds: float = 60.0,
        stdin: bytes | BinaryIO | None = None,
        sudo: bool = False,
    ) -> str:
        """What a command writes on stdout; CheckFailed D412 when it ends with another status."""
        done = self.run(argv, seconds=seconds, stdin=stdin, sudo=sudo)
        if done.status:
            raise CheckFailed(
                "D412",
                f"{self.name}: {shlex.join(argv)[:200]} ended with {done.status}: "
                f"{done.last_word}.",
                fix=f"run it there by hand: {self.shell()}",
            )
        return done.stdout

    def put(
        self,
        data: bytes | Path,
        to: str,
        *,
        mode: int = 0o644,
        seconds: float = 60.0,
        sudo: bool = False,
    ) -> None:
        """Write a file there, whole or not at all; its folder is made when absent.

        Raises D412 with the reason when it could not be written; the old file then stays.
        """
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        argv = ["sh", "-c", _PUT, "put", to, f"{mode:o}", str(size)]
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(data.open("rb")) if isinstance(data, Path) else data
            done = self.run(argv, seconds=seconds, stdin=stream, sudo=sudo)
        if done.status:
            raise CheckFailed(
                "D412",
                f"{self.name}: {to} could not be written: {done.last_word}.",
                fix=f"look at its folder and at the free space there: {self.shell()}",
            )

    def follow(self, argv: Sequence[str], *, sudo: bool = False) -> Iterator[str]:
        """The lines of a command as they come, clean, until it ends or the iterator is closed."""
        with subprocess.Popen(
            self._words(self._as(["sh", "-c", _FOLLOW, "follow", *argv], sudo)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            try:
                yield from _lines(process.stdout)
            finally:
                self._let_go(process)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        """End a followed command: its shell hears that nobody reads; a dead link is not awaited."""
        if process.stdin is not None:
            process.stdin.close()
        if process.stdout is not None:
            process.stdout.close()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()

    def shell(self) -> str:
        """The words with which a person gets a shell there."""
        return "sh" if self.destination == LOCAL else f"ssh {self.destination}"

    def close(self) -> None:
        """End the shared connection."""
        if self._folder is None:
            return
        words = ["ssh", "-O", "exit", *self._control(), *self.options, self.destination]
        subprocess.run(words, capture_output=True, timeout=10, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _as(self, argv: Sequence[str], sudo: bool) -> list[str]:  # noqa: FBT001 - private
        return ["sudo", "-n", "--", *argv] if sudo and self.sudo else list(argv)

    def _words(self, argv: Sequence[str]) -> list[str]:
        if self.destination == LOCAL:
            return list(argv)
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
        words += ["-o", f"ServerAliveInterval={ALIVE_EVERY}"]
        words += ["-o", f"ServerAliveCountMax={ALIVE_COUNT}"]
        words += [*self._control(), *self.options, self.destination, "--"]
        return [*words, shlex.join(argv)]

    def _control(self) -> list[str]:
        with self._lock:
            if self._folder is None:
                # short: the path of a socket has at most 108 bytes
                self._folder = tempfile.mkdtemp(prefix="dsv41-")
        path = f"{self._folder}/s"
        return ["-o", "ControlMaster=auto", "-o", f"ControlPath={path}", "-o", "ControlPersist=60"]

    def _require_reached(self, done: Done) -> None:
        if self.destination == LOCAL or done.status != _SSH_FAILED:
            return
        if any(word in done.stderr for word in (*_SSH_WORDS, *_LINK_WORDS)):
            says = f"cannot be reached: {done.last_word}"
        elif self._alive():
            return  # the command's own
        else:  # a connection that is shared ends without a word to those who share it
            says = "was lost: the connection ended during a command"
        raise Unreachable(
            "D068", f"{self.name} ({self.destination}) {says}.", fix=f"{self.shell()} true"
        )

    def _alive(self) -> bool:
        words = ["ssh", "-O", "check", *self._control(), *self.options, self.destination]
        return not subprocess.run(words, capture_output=True, timeout=10, check=False).returncode

    def _late(self, argv: Sequence[str], seconds: float) -> EngineFailed:
        return EngineFailed(
            "D411",
            f"{self.name}: {shlex.join(argv)[:200]} was not done within {seconds:g} s, and was "
            "ended.",
            fix=f"look at what holds the machine up: {self.shell()}",
        )

    def _no_sudo(self, done: Done) -> CheckFailed:
        return CheckFailed(
            "D413",
            f"{self.name}: sudo refuses: {done.last_word}.",
            fix="allow the user of the fleet file to use sudo without a password there, or set "
            "sudo = false",
        )


def each(
    hosts: Iterable[Host], call: Callable[[Host], T], *, at_once: int = 8
) -> Mapping[str, T | Error]:
    """Call once a host, in threads; what it gave or the error it raised, by name, in order."""

    def one(host: Host) -> T | Error:
        try:
            return call(host)
        except Error as error:
            return error

    listed = list(hosts)
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        found = list(pool.map(one, listed))
    return {host.name: result for host, result in zip(listed, found, strict=True)}


def _lines(stream: IO[bytes] | None) -> Iterator[str]:
    """The lines of a stream; of one without an end, pieces."""
    while stream is not None and (line := stream.readline(4 * LONGEST_LINE)):
        yield clean(line.decode(errors="replace"))


def _input(stdin: bytes | BinaryIO | None) -> dict[str, object]:
    if stdin is None:
        return {"stdin": subprocess.DEVNULL}
    return {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
