"""The first process of a machine of the namespace fleet: reaps what others leave behind.

Run by /usr/bin/python3 inside fresh pid, mount and network namespaces; when it ends, the kernel
ends every process of the machine.
"""

import os
import signal


def main() -> None:
    """Wait for children until a signal says to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    print("up", flush=True)  # noqa: T201 - whoever started the machine waits for this line
    while signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) == signal.SIGCHLD:
        reap()


def reap() -> None:
    """Take the exit status of every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


main()
