"""Which request runs in which slot, and what the next step does; no threads, no clocks, no model.

Admission is first come, first served. A step appends at most one prompt chunk (of the admitted
prompt that waited longest since its last chunk) and decodes every slot whose prompt is complete, so
neither a long prompt nor a full batch holds the others up. A prompt is always cut at the same
places, whatever else runs: a text must not depend on its neighbors.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dsv41.errors import EngineFailed, Error
from dsv41.local.engine.sampling import Sampler
from dsv41.local.engine.steps import NOBODY, Logits, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from dsv41.local.engine.generation import Event, Generation, Job


class Request:
    """One job on its way: waiting, then in a slot, then done.

    deliver gets every event, the last one with `finish`; fail gets the error that ended it instead.
    Both are called from the thread that steps and must return at once.
    """

    def __init__(
        self,
        generation: Generation,
        *,
        deliver: Callable[[Event], None],
        fail: Callable[[Error], None],
    ) -> None:
        self.generation = generation
        self.sampler = Sampler(generation.job)
        self.deliver = deliver
        self.fail = fail
        self.canceled = False  # set from any thread
        self.drawn = 0  # tokens drawn, the end of sequence included
        self.filled = 0  # prompt tokens that the model has seen
        self.last = NOBODY  # the drawn token that the model has not seen

    @property
    def job(self) -> Job:
        """What was asked for."""
        return self.generation.job

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt was seen."""
        return self.filled == len(self.job.prompt)

    def draw(self, logits: Tensor) -> Event:
        """Take the next token from its logits [vocab]."""
        token = self.sampler.draw(logits, position=self.drawn, mask=self.generation.mask())
        self.drawn += 1
        self.last = token
        return self.generation.push(token)


class Scheduler:
    """The queue and the slots, used by one thread; only `Request.canceled` is set from others."""

    def __init__(self, *, slots: int, context: int, chunk: int, queue: int) -> None:
        self.context = context
        self.chunk = chunk
        self.bound = queue
        self.waiting: deque[Request] = deque()
        self.slots: list[Request | None] = [None] * slots
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.prefill_steps = 0
        self._turns: deque[int] = deque()  # slots that still fill, the next one first
        self._fresh: set[int] = set()  # slots given to a request that the model has not emptied yet

    @property
    def running(self) -> int:
        """How many slots hold a request that is still wanted."""
        return sum(request is not None and not request.canceled for request in self.slots)

    @property
    def queued(self) -> int:
        """How many requests wait for a slot."""
        return sum(not request.canceled for request in tuple(self.waiting))

    @property
    def idle(self) -> bool:
        """Whether no step is needed now."""
        return self.running == 0 and self.queued == 0

    def room(self) -> int:
        """How many more requests may come: free slots and free places in the queue."""
        return len(self.slots) - self.running + self.bound - self.queued

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    def plan(self, *, beat: bool = False) -> Step:
        """Drop what was canceled, admit what fits, and say what the next step does."""
        self._drop_canceled()
        self._admit()
        resets, self._fresh = tuple(sorted(self._fresh)), set()
        slot, chunk = self._next_chunk()
        decode = tuple(
            request.last if request is not None and request.decoding else NOBODY
            for request in self.slots
        )
        busy = any(token != NOBODY for token in decode)
        return Step(
            resets=resets,
            prefill=slot,
            chunk=chunk,
            decode=decode if busy else (),
            beat=beat,
        )

    def apply(self, step: Step, logits: Logits) -> None:
        """Draw the tokens of the step that was planned last and has run.

        A request whose constraint or logits fail ends with that error; the others go on.
        """
        if logits.decode is not None:
            for slot, token in enumerate(step.decode):
                if token != NOBODY:
                    self._advance(slot, logits.decode[slot])
        if step.chunk:
            self._filled(step, logits)

    def fail_all(self, error: Error) -> None:
        """End every request with an error."""
        everyone = [*self.waiting, *(request for request in self.slots if request is not None)]
        self.waiting.clear()
        self.slots = [None] * len(self.slots)
        self._turns.clear()
        for request in everyone:
            request.fail(error)

    def _admit(self) -> None:
        for slot, held in enumerate(self.slots):
            if held is None and self.waiting:
                self.slots[slot] = self.waiting.popleft()
                self._turns.append(slot)
                self._fresh.add(slot)

    def _next_chunk(self) -> tuple[int, tuple[int, ...]]:
        if not self._turns:
            return NOBODY, ()
        slot = self._turns[0]
        request = self._at(slot)
        return slot, request.job.prompt[request.filled : request.filled + self.chunk]

    def _filled(self, step: Step, logits: Logits) -> None:
        request = self._at(step.prefill)
        self.prefill_steps += 1
        self.prompt_tokens += len(step.chunk)
        request.filled += len(step.chunk)
        self._turns.remove(step.prefill)
        if not request.decoding:
            self._turns.append(step.prefill)
        elif logits.prefill is not None:
            self._advance(step.prefill, logits.prefill)

    def _advance(self, slot: int, logits: Tensor) -> None:
        request = self._at(slot)
        if request.canceled:
            return
        try:
            event = request.draw(logits)
        except Error as error:
            self._free(slot)
            request.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - a constraint library may raise anything
            self._free(slot)
            says = f"the output constraint failed: {type(error).__name__}: {error}."
            request.fail(EngineFailed("D054", says, fix="send a simpler schema"))
            return
        self.generated_tokens += len(event.tokens)
        if event.finish is not None:
            self._free(slot)
        request.deliver(event)

    def _at(self, slot: int) -> Request:
        request = self.slots[slot]
        if request is None:
            raise RuntimeError(f"slot {slot} was stepped and holds no request")
        return request

    def _free(self, slot: int) -> None:
        self.slots[slot] = None
        self._fresh.discard(slot)
        if slot in self._turns:
            self._turns.remove(slot)

    def _drop_canceled(self) -> None:
        self.waiting = deque(request for request in self.waiting if not request.canceled)
        for slot, request in enumerate(self.slots):
            if request is not None and request.canceled:
                self._free(slot)
