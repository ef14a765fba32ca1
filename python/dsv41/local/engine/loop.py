"""The front of the scheduler on rank 0: requests in, streams of events out, one thread that steps.

When a step fails (a peer died or did not answer in time) every request ends with EngineFailed, and
`alive` and `failure` say so from then on; there is no way back but a new process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from dsv41.errors import EngineFailed, Error, UsageError
from dsv41.local.engine.generation import Event, Generation, Job, QueueFullError
from dsv41.local.engine.scheduler import Request, Scheduler
from dsv41.local.engine.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dsv41.local.engine.steps import Runner

BEAT = 1.0  # seconds between two questions whether all ranks are there
QUEUE = 64  # requests that may wait beyond those that run
_LATER = "send the request again later"


class Stream:
    """The events of one job, for one reader in the event loop that submitted it."""

    def __init__(self, generation: Generation) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Event | Error] = asyncio.Queue()
        self._over = False
        self.request = Request(generation, deliver=self._put, fail=self._put)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        """Give the next event; raise the Error that ended the stream, if one did."""
        if self._over:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, Error):
            self._over = True
            raise item
        self._over = item.finish is not None
        return item

    def cancel(self) -> None:
        """Give the slot back; the iterator ends. Harmless when the stream is over."""
        self.request.canceled = True
        self._over = True

    def _put(self, item: Event | Error) -> None:
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the reader's loop is closed: nobody listens any more
            self.request.canceled = True


class Engine:
    """Runs jobs on the ranks that `runner` leads; `rows` gives the row stores' statistics."""

    def __init__(
        self,
        runner: Runner,
        *,
        queue: int = QUEUE,
        vocab: int = 129280,
        rows: Callable[[], Mapping[int, Mapping[str, Any]]] = dict,
    ) -> None:
        self.alive = True
        self.failure: str | None = None
        self.stop_wanted = threading.Event()  # another rank was told to stop
        self._runner = runner
        self._rows = rows
        self._vocab = vocab
        self._scheduler = Scheduler(
            slots=runner.slots,
            context=runner.context,
            chunk=runner.chunk,
            queue=queue,
            ahead=runner.ahead,
        )
        self._wake = threading.Condition()
        self._inbox: list[Request] = []
        self._closing: str | None = None  # why no more requests are taken
        self._ending = False
        self._stepping: float | None = None  # when the step in progress began
        self._beaten = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def submit(self, job: Job) -> Stream:
        """Queue a job from a coroutine.

        UsageError D051 when the job cannot fit, QueueFullError D052 when too many wait,
        EngineFailed D053 when the engine is dead, D055 when it stops.
        """
        if any(not 0 <= token < self._vocab for token in job.prompt):
            raise UsageError(
                "D051",
                f"the prompt has an id outside 0..{self._vocab - 1}.",
                fix="encode the prompt with the tokenizer of this checkpoint",
            )
        stream = Stream(Generation(job, context=self._runner.context))
        with self._wake:
            self._refuse_when_closed()
            if self._scheduler.room() <= len(self._inbox):
                raise QueueFullError(
                    "D052",
                    f"{self._scheduler.bound} requests wait for a slot; no more are taken.",
                    fix="send the request again later, or serve with more slots",
                )
            self._inbox.append(stream.request)
            self._wake.notify()
        return stream

    def stats(self) -> dict[str, Any]:
        """Counters since the start and the present load; seconds in model calls and collectives."""
        scheduler, meter = self._scheduler, self._runner.meter
        return {
            "running": scheduler.running,
            "queued": scheduler.queued + len(self._inbox),
            "slots": self._runner.slots,
            "generated_tokens_total": scheduler.generated_tokens,
            "prompt_tokens_total": scheduler.prompt_tokens,
            "steps": meter.steps,
            "prefill_steps": scheduler.prefill_steps,
            "model_seconds": meter.model,
            "collective_seconds": meter.collectives,
            "rows_ahead_asked": meter.ahead.asked,
            "rows_ahead_used": meter.ahead.used,
            "rows_ahead_dropped": meter.ahead.dropped,
            "rows": {layer: dict(stats) for layer, stats in self._rows().items()},
        }

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self._inbox) or not self._scheduler.idle

    def stalled(self, limit: float) -> bool:
        """Whether the step in progress takes longer than `limit` seconds."""
        began = self._stepping
        return began is not None and time.monotonic() - began > limit

    def drain(self) -> None:
        """Take no more requests; those that run and wait go on."""
        with self._wake:
            self._closing = self._closing or "the engine is stopping."

    def close(self, *, timeout: float = 10.0) -> bool:
        """End what still runs with EngineFailed D055, dismiss the other ranks; True when done."""
        self.drain()
        with self._wake:
            self._ending = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def fail(self, says: str) -> None:
        """Declare the engine dead, from any thread; every request ends with EngineFailed D053."""
        with self._wake:
            if not self.alive:
                return
            self.failure = says
            self.alive = False
            lost, self._inbox = self._inbox, []
        error = EngineFailed("D053", says, fix="dsv41 logs shows which rank ended, and why")
        self._end_all(error, lost)

    def _refuse_when_closed(self) -> None:
        if self.failure is not None:
            raise EngineFailed("D053", self.failure, fix="start the service again")
        if self._closing is not None:
            raise EngineFailed("D055", self._closing, fix=_LATER)

    def _end_all(self, error: Error, lost: list[Request]) -> None:
        for request in lost:
            request.fail(error)
        self._scheduler.fail_all(error)

    def _run(self) -> None:
        try:
            while self.alive and self._step():
                pass
        except Error as error:
            self.fail(error.says)
        except Exception as error:  # noqa: BLE001 - collectives raise RuntimeError and kin
            self.fail(step_failed(error).says)

    def _step(self) -> bool:
        with self._wake:
            self._wake.wait_for(self._has_work, timeout=self._until_beat())
            arrived, self._inbox = self._inbox, []
            ending = self._ending
        if ending:
            self._end_all(EngineFailed("D055", "the engine is stopping.", fix=_LATER), arrived)
            self._runner.lead(Step(stop=True))
            return False
        for request in arrived:
            self._scheduler.submit(request)
        self._do(self._scheduler.plan(beat=self._until_beat() == 0.0))
        return True

    def _do(self, step: Step) -> None:
        if not (step.beat or step.chunk or step.decode or step.forget):
            return
        self._stepping = time.monotonic()
        logits = self._runner.lead(step)
        self._stepping = None
        if step.beat:
            self._beaten = time.monotonic()
            if self._runner.stopping:
                self.stop_wanted.set()
        if self.alive:
            self._scheduler.apply(step, logits)

    def _has_work(self) -> bool:
        return self._ending or self.busy or self._scheduler.loose

    def _until_beat(self) -> float | None:
        """Give the seconds until the next beat; None when there is no other rank to ask."""
        if self._runner.comm.world == 1:
            return None
        return max(0.0, self._beaten + BEAT - time.monotonic())


def step_failed(error: Exception) -> EngineFailed:
    """Give the error that says why a step could not be done, in one line."""
    first = (str(error).strip().splitlines() or ["no text"])[0].rstrip(".")
    return EngineFailed(
        "D053",
        f"a step failed: {type(error).__name__}: {first}.",
        fix="dsv41 logs shows which rank ended first, and why",
    )
