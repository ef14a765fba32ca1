"""Stop signals reach a rank whatever its main thread does; they need no torch to test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import os, sys, threading, time
from dsv41.local import stopping
stopping.LONGEST = {longest}
signals = stopping.StopSignals(say=lambda text: print(text, flush=True))
{then}
print("up", flush=True)
threading.Event().wait(60)
"""
BEGIN = "signals.begin(lambda: print('asked', flush=True))"


class Program:
    """A Python process that takes stop signals; its lines so far are read as they come."""

    def __init__(
        self, then: str = "", *, longest: float = 30.0, wrap: tuple[str, ...] = ()
    ) -> None:
        text = PROGRAM.format(longest=longest, then=then)
        self.process = subprocess.Popen(
            [*wrap, sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
        )
        assert self.line() == "up"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    made: list[Program] = []
    yield made
    for program in made:
        program.process.kill()
        program.process.wait()
        assert program.process.stdout is not None
        program.process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anything_runs_ends_at_once(
    programs: list[Program], number: signal.Signals
) -> None:
    program = Program()
    programs.append(program)
    program.process.send_signal(number)
    assert program.line() == f"{number.name}: stopping"
    assert program.process.wait(5) == 0


def test_the_first_signal_asks_and_the_second_ends(programs: list[Program]) -> None:
    program = Program(BEGIN)
    programs.append(program)
    program.process.terminate()
    assert [program.line(), program.line()] == ["SIGTERM: stopping", "asked"]
    assert program.process.poll() is None
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "stopped at once"
    assert program.process.wait(5) == 0


def test_a_stop_that_hangs_is_ended(programs: list[Program]) -> None:
    program = Program(BEGIN, longest=0.3)
    programs.append(program)
    program.process.terminate()
    began = time.monotonic()
    assert program.process.wait(10) == 0
    assert time.monotonic() - began >= 0.25
    assert [program.line() for _ in range(3)][-1] == "did not stop in 0.3 s: ending"


def test_a_rank_dies_with_its_parent(programs: list[Program]) -> None:
    # the shell stays between us and the program, because another command follows
    shell = ("sh", "-c", '"$@"; exit 0', "sh")
    program = Program("stopping.die_with_parent(os.getppid())", wrap=shell)
    programs.append(program)
    program.process.kill()
    assert program.line() == ""  # ended by a KILL: it said nothing more


def test_a_rank_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from dsv41.local import stopping; stopping.die_with_parent(1)"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=20)
    assert done.returncode == -signal.SIGKILL
