"""How a rank hears that it must stop: SIGTERM and SIGINT, taken by a thread of their own.

A signal handler of Python runs only when the main thread comes back from C++; a rank that waits
for its peers does not come back for seconds. So the signals are blocked everywhere and a thread
waits for them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LONGEST = 7.0  # seconds from the first signal to the end of the process, whatever hangs
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class StopSignals:
    """The first signal calls `on_stop`; a second one, or LONGEST seconds, end the process with 0.

    Construct it in the main thread before other threads start: they inherit the blocked signals.
    Before `begin` a signal ends the process with 0 at once: nothing runs yet.
    """

    def __init__(self, *, say: Callable[[str], None]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.asked = threading.Event()
        self._say = say
        self._on_stop: Callable[[], None] | None = None
        threading.Thread(target=self._wait, name="signals", daemon=True).start()

    def begin(self, on_stop: Callable[[], None]) -> None:
        """From now on there is something to end in good order."""
        self._on_stop = on_stop

    def _wait(self) -> None:
        number = signal.sigwait(SIGNALS)
        self._say(f"{signal.Signals(number).name}: stopping")
        if self._on_stop is None:
            os._exit(0)
        self.asked.set()
        self._on_stop()
        again = signal.sigtimedwait(SIGNALS, LONGEST)
        self._say("stopped at once" if again else f"did not stop in {LONGEST:g} s: ending")
        os._exit(0)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for a KILL when the parent ends (prctl PR_SET_PDEATHSIG; Linux only).

    A parent that still lives asks with a TERM; one that is gone can ask for nothing, and only a
    KILL ends a process that is stopped. `parent` is its pid: it may have ended already.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
