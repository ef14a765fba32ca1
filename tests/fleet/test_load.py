"""Eight streams for three minutes while a rank is killed and the fleet comes back."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from dsv41.api import Endpoint
from dsv41.errors import EngineFailed, Unreachable
from fleet import serving
from fleet.fleets import Fleet

STREAMS = 8
SECONDS = 180.0
LIMIT = 60.0  # for one request, however it ends
PROMPTS = ("What is 19 + 23?", "What is 7 + 35?", "Tell me about the sea.", "What is 20 + 22?")

pytestmark = [pytest.mark.fleet_load, pytest.mark.timeout(900)]


class Client:
    """One stream after another, until the time is over; how each of them ended."""

    def __init__(self, url: str, number: int) -> None:
        self.endpoint = Endpoint(url=url, timeout=LIMIT)
        self.number = number
        self.ends: Counter[str] = Counter()
        self.longest = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        until, n = time.monotonic() + SECONDS, self.number
        while (began := time.monotonic()) < until:
            how = self._one(PROMPTS[n % len(PROMPTS)])
            self.ends[how] += 1
            self.longest = max(self.longest, time.monotonic() - began)
            n += 1
            if how == "refused":
                time.sleep(0.5)  # as a client of OpenAI backs off

    def _one(self, prompt: str) -> str:
        said = [{"role": "user", "content": prompt}]
        body = {"model": "dsv41-fixture", "messages": said, "max_tokens": 48}
        try:
            chunks = list(self.endpoint.stream(**body))
        except EngineFailed as error:
            return "error" if error.code == "D111" else "cut"
        except Unreachable as error:
            return "hung" if "timed out" in error.says else "refused"
        return "answer" if chunks and chunks[-1]["choices"] else "answer without an end"


def test_every_request_ends_while_a_rank_is_killed(three: Fleet) -> None:
    serving.served(three)
    before = serving.round_of(three)
    clients = [Client(three.url, number) for number in range(STREAMS)]
    for client in clients:
        client.thread.start()
    time.sleep(SECONDS / 6)
    three[1].run("podman", "kill", "--signal", "KILL", "dsv41-rank1")
    back = serving.comes_back(three, after=before)
    served = sum(client.ends["answer"] for client in clients)
    for client in clients:
        client.thread.join(SECONDS + LIMIT)
    assert not [client for client in clients if client.thread.is_alive()]
    ends = sum((client.ends for client in clients), Counter[str]())
    longest = max(client.longest for client in clients)
    print(f"\nends {dict(ends)}; back after {back:.0f} s; longest request {longest:.1f} s")  # noqa: T201
    assert set(ends) <= {"answer", "error", "refused", "cut"}, ends
    assert ends["answer"] > served, "nothing was answered after the fleet was back"
    assert serving.status(three)[0] == 0
