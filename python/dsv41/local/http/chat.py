"""POST /v1/chat/completions: from a request to a job for the engine, and from its answer back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from dsv41.errors import Error, UsageError
from dsv41.guards.cap import cap
from dsv41.guards.loop import LoopDetector
from dsv41.local.engine.generation import Job, QueueFullError, Sampling
from dsv41.local.http import sse
from dsv41.local.http.answer import Answer, Header
from dsv41.local.http.constraint import Formed, Grammars
from dsv41.local.http.detokenize import Detokenizer
from dsv41.local.http.openai import Ask, RequestError, read_ask, read_body
from dsv41.local.http.prompt import Need, Prompt, Prompts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from dsv41.local.engine.loop import Engine
    from dsv41.local.http.metrics import Metrics
    from dsv41.local.http.settings import Guards, Settings

DEAD, STOPPING = "D053", "D055"  # the engine's codes
GONE = 499  # nginx's status for a client that left; nobody reads it


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """A request that is ready to be generated."""

    ask: Ask
    prompt: Prompt
    job: Job
    model: str


class Chat:
    """The endpoint."""

    def __init__(
        self, engine: Engine, settings: Settings, guards: Guards, metrics: Metrics
    ) -> None:
        tokenizer = settings.tokenizer.read_text(encoding="utf-8")
        self._engine = engine
        self._settings = settings
        # one at a time: parsing holds the interpreter, and the ranks wait for rank 0's next step
        self._preparing = asyncio.Semaphore(1)
        self._guards = guards
        self._metrics = metrics
        self._prompts = Prompts(tokenizer, models=settings.names, default_effort=guards.effort)
        self._grammars = Grammars(tokenizer)
        self._decode = Detokenizer(tokenizer)

    async def complete(self, request: Request) -> Response:
        """Answer one request, streamed or whole."""
        try:
            raw = await read_limited(request, self._settings.body_bytes)
            async with self._preparing:
                work = await asyncio.to_thread(self._prepare, raw)
            answer = self._submit(work)
        except ClientDisconnect:
            self._metrics.requests.labels(outcome="gone").inc()
            return Response(status_code=499)  # nobody reads it
        except (RequestError, Error) as error:
            self._metrics.requests.labels(outcome="refused").inc()
            raise error if isinstance(error, RequestError) else refusal(error) from None
        if work.ask.stream:
            return sse.EventStream(
                self._events(answer, work.ask),
                keepalive=self._settings.keepalive,
                closed=answer.cancel,
            )
        return await self._whole(answer, request)

    def _prepare(self, raw: bytes) -> Work:
        """Do all that needs time but not the engine; not in the event loop."""
        body = read_body(raw)
        ask = read_ask(body)
        prompt = self._prompts.prepare(body)
        room = self._settings.context - len(prompt.ids)
        if room < 1:
            raise too_long(len(prompt.ids), self._settings.context)
        limits = cap(
            max_tokens=ask.max_tokens,
            max_completion_tokens=ask.max_completion_tokens,
            limit=self._guards.max_new_tokens,
        )
        if limits.clamped:
            self._metrics.caps.inc()
        wanted = limits.in_force or prompt.default_max_tokens(self._settings.context)
        return Work(
            ask=ask,
            prompt=prompt,
            job=self._job(ask, prompt, max_tokens=min(wanted, room)),
            model=body.get("model", self._settings.model),
        )

    def _job(self, ask: Ask, prompt: Prompt, *, max_tokens: int) -> Job:
        temperature, top_p = ask.temperature, ask.top_p
        sampling = Sampling(
            temperature=self._settings.temperature if temperature is None else temperature,
            top_p=self._settings.top_p if top_p is None else top_p,
            seed=ask.seed,
        )
        if prompt.need is None:
            loop = LoopDetector(self._guards.loop, self._decode)
            return Job(prompt=prompt.ids, max_tokens=max_tokens, sampling=sampling, loop=loop)
        # a formed answer is brought to its end by its form, not cut off by the loop stop
        formed = self._formed(prompt.need, max_tokens=max_tokens)
        return Job(prompt=prompt.ids, max_tokens=max_tokens, sampling=sampling, constraint=formed)

    def _formed(self, need: Need, *, max_tokens: int) -> Formed:
        try:
            return self._grammars.constraint(need, max_tokens=max_tokens)
        except ValueError as error:
            field = "tools" if need.kind == "tool_call_required" else "response_format"
            says = f"{field} asks for a form that this server cannot enforce: {error}"
            raise RequestError(says, param=field, code="invalid_value") from None

    def _submit(self, work: Work) -> Answer:
        loop = work.job.loop
        return Answer(
            self._engine.submit(work.job),
            prompts=self._prompts,
            prompt=work.prompt,
            header=Header(model=work.model),
            loop=loop if isinstance(loop, LoopDetector) else None,
            metrics=self._metrics,
        )

    async def _whole(self, answer: Answer, request: Request) -> Response:
        try:
            return JSONResponse(await sse.unless_gone(answer.whole(), request.receive))
        except sse.ClientGoneError:
            return Response(status_code=GONE)
        except Error as error:
            raise refusal(error) from None
        finally:
            answer.cancel()

    async def _events(self, answer: Answer, ask: Ask) -> AsyncGenerator[bytes]:
        usage: dict[str, Any] = {}
        try:
            async for chunks in answer.chunks():
                for chunk in chunks:
                    counted = chunk.pop("usage", None)
                    if counted:
                        usage = {**chunk, "choices": [], "usage": counted}
                    yield sse.event({**chunk, "usage": None} if ask.include_usage else chunk)
        except Error as error:
            yield sse.event(refusal(error).body)
            return
        if ask.include_usage:
            yield sse.event(usage)
        yield sse.DONE


async def read_limited(request: Request, limit: int) -> bytes:
    """Read the body; RequestError 413 when it is longer than `limit` bytes."""
    raw = bytearray()
    declared = request.headers.get("content-length", "")
    if not (declared.isdecimal() and int(declared) > limit):
        async for part in request.stream():
            raw += part
            if len(raw) > limit:
                break
        else:
            return bytes(raw)
    raise RequestError(
        f"The body is longer than {limit} bytes.", status=413, code="request_too_large"
    )


def too_long(tokens: int, context: int) -> RequestError:
    """Refuse a prompt that leaves no room for an answer."""
    return RequestError(
        f"The prompt has {tokens} tokens; the context holds {context}, with at least one for the "
        "answer.",
        param="messages",
        code="context_length_exceeded",
    )


def refusal(error: Error) -> RequestError:
    """Say an error of the engine as an answer: the client's mistake, a full queue, or a failure."""
    says = f"{error.says} ({error.code})"
    if isinstance(error, UsageError):
        return RequestError(says, code="invalid_value")
    if isinstance(error, QueueFullError):
        return RequestError(says, status=429, kind="rate_limit_error", code="queue_full")
    status = 503 if error.code in (DEAD, STOPPING) else 500
    return RequestError(says, status=status, kind="server_error", code="engine_failed")
