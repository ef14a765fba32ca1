"""Which request runs in which slot, and what the next step does; no threads, no clocks, no model.

Admission is first come, first served. A step appends at most one prompt chunk (of the admitted
prompt that waited longest since its last chunk) and decodes every slot whose prompt is complete, so
neither a long prompt nor a full batch holds the others up. A prompt is always cut at the same
places, whatever else runs: a text must not depend on its neighbors.

So the chunk after this step's is known, unless its request is canceled: the turn's next, or where
no slot fills, the first one of the request that waits longest. A step names it, once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dsv41.errors import EngineFailed, Error
from dsv41.local.engine.sampling import Sampler
from dsv41.local.engine.steps import NOBODY, Logits, Step
from dsv41.local.model.ahead import FRESH, Ahead

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
    """The queue and the slots, used by one thread; only `Request.canceled` is set from others.

    ahead: whether steps name the chunk that comes next.
    """

    def __init__(
        self, *, slots: int, context: int, chunk: int, queue: int, ahead: bool = True
    ) -> None:
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
        self._ahead = ahead
        self._asked: tuple[Request, int] | None = None  # whose chunk, from where, was named

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

    @property
    def loose(self) -> bool:
        """Whether rows were asked for that no request wants any more."""
        return self._asked is not None and self.idle

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
        ahead, forget = self._name_next(slot, chunk)
        return Step(
            resets=resets,
            prefill=slot,
            chunk=chunk,
            decode=decode if busy else (),
            ahead=ahead,
            forget=forget,
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

    def _name_next(self, slot: int, chunk: tuple[int, ...]) -> tuple[Ahead | None, bool]:
        """The chunk to ask for during the step of `chunk`; whether to forget the one asked for."""
        asked = self._asked
        if chunk and asked == (self._at(slot), self._at(slot).filled):
            asked = None  # this step uses it
        following = self._following(slot, chunk) if self._ahead else None
        self._asked = None if following is None else following[:2]
        if following is None or self._asked == asked:
            return None, following is None and asked is not None
        request, first, where = following
        tokens = request.job.prompt[first : first + self.chunk]
        return Ahead(slot=where, tokens=tokens), False

    def _following(self, slot: int, chunk: tuple[int, ...]) -> tuple[Request, int, int] | None:
        """The chunk after `chunk`: whose, from which token, in which slot."""
        turns = [turn for turn in self._turns if turn != slot]
        if chunk and self._at(slot).filled + len(chunk) < len(self._at(slot).job.prompt):
            turns.append(slot)
        if turns:
            request = self._at(turns[0])
            return request, request.filled + (len(chunk) if turns[0] == slot else 0), turns[0]
        if self.waiting:
            return self.waiting[0], 0, FRESH
        return None

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
