"""Requested against effective: what the engine was asked for, what it says it really has.

SGLang echoes the request first (`server_args=`) and prints the effective values later, after it
has lowered them without a word (user report P05: six slots of eight, 206,635 pool tokens). Only the
later line counts. vLLM refuses instead of lowering, but fits max_model_len when asked to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv41.diagnose.expect import LIMITS, Expect
from dsv41.diagnose.log import Line
from dsv41.finding import Finding

Found = dict[str, int]
_DIGITS = 12  # a longer number is not one of these


def _key(name: str) -> str:
    """A key with its number, as keyword argument, dictionary entry or JSON."""
    return rf"(?<![a-z_]){name}['\"]?\s*[:=]\s*([\d,]{{1,{_DIGITS}}})\b"


def _table(marker: str, **keys: str) -> tuple[re.Pattern[str], dict[str, re.Pattern[str]]]:
    return re.compile(marker), {limit: re.compile(_key(key)) for limit, key in keys.items()}


_REQUESTED = {
    "sglang": _table(
        r"server_args=",
        pool_tokens="max_total_tokens",
        slots="max_running_requests",
        chunk="chunked_prefill_size",
        context="context_length",
        draft_window="speculative_dspark_block_size",
    ),
    "vllm": _table(
        r"non-default args",
        slots="max_num_seqs",
        chunk="max_num_batched_tokens",
        context="max_model_len",
        draft_window="num_speculative_tokens",
    ),
}
_EFFECTIVE = {
    "sglang": (
        _table(
            r"max_total_num_tokens=\d",
            pool_tokens="max_total_num_tokens",
            slots="max_running_requests",
            chunk="chunked_prefill_size",
            context="context_len",
        ),
        _table(r"DSpark draft runner|verify_num_draft_tokens=", draft_window="gamma"),
        _table(r"(?i)dsv4 memory calculation", pool_room="full_token"),
    ),
    "vllm": (
        _table(r"LLM engine .{0,80}config:", context="max_seq_len", draft_window="num_spec_tokens"),
        _table(r"max_num_batched_tokens=\d", chunk="max_num_batched_tokens"),
    ),
}
_VLLM_POOL = re.compile(r"GPU KV cache size: ([\d,]{1,15}) tokens")
_VLLM_FITTED = re.compile(
    r"max_model_len.{0,60}?reduced from ([\d,]{1,15}) to ([\d,]{1,15})", re.IGNORECASE
)
_CAPPED = re.compile(r"max_running_requests is capped to \d+ by (?:the )?([^(.]{1,60})")
_MEMORY = re.compile(r"available_gpu_mem=([\d.]{1,8}) GB")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one boot, by the names in `LIMITS`, as far as the log has them.

    `pool_room` in `effective` is what would fit (SGLang's full_token), `available_gib` what was
    left after all allocations; `capped_by` is SGLang's own word for why it lowered the slots.
    """

    requested: Found
    effective: Found
    available_gib: float | None = None
    capped_by: str = ""


def _number(text: str) -> int | None:
    digits = text.replace(",", "")
    return int(digits) if digits else None


def _scan(line: Line, table: tuple[re.Pattern[str], Mapping[str, re.Pattern[str]]]) -> Found:
    marker, keys = table
    if not marker.search(line.text):
        return {}
    hits = {limit: key.search(line.text) for limit, key in keys.items()}
    numbers = {limit: _number(hit[1]) for limit, hit in hits.items() if hit}
    return {limit: number for limit, number in numbers.items() if number is not None}


def read_limits(lines: tuple[Line, ...], *, engine: str) -> Limits:
    """What was asked for and what came out; the last word of each counts."""
    requested: Found = {}
    effective: Found = {}
    memory, capped = None, ""
    for line in lines:
        if engine in _REQUESTED:
            requested |= _scan(line, _REQUESTED[engine])
        for table in _EFFECTIVE.get(engine, ()):
            effective |= _scan(line, table)
        if engine == "vllm":
            effective |= _vllm(line)
        if found := _MEMORY.search(line.text):
            memory = _decimal(found[1])
        if found := _CAPPED.search(line.text):
            capped = found[1].strip()
    if engine == "vllm" and effective and "slots" in requested:
        effective.setdefault("slots", requested["slots"])
    return Limits(requested=requested, effective=effective, available_gib=memory, capped_by=capped)


def _vllm(line: Line) -> Found:
    if found := _VLLM_POOL.search(line.text):
        pool = _number(found[1])
        return {} if pool is None else {"pool_tokens": pool}
    if found := _VLLM_FITTED.search(line.text):
        context = _number(found[2])
        return {} if context is None else {"context": context}
    return {}


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_WORDS = {
    "pool_tokens": ("KV pool tokens", "free memory on the node, or lower max_total_tokens"),
    "slots": ("requests at once", "lower max_running_requests, or free memory on the node"),
    "chunk": ("prefill chunk tokens", "give the profile's chunk"),
    "context": ("context tokens", "free memory on the node, or lower the context"),
    "draft_window": ("drafted tokens a step", "give a draft length that is a multiple of 5"),
}


def judge_limits(limits: Limits, expect: Expect) -> Iterator[Finding]:
    """D302: every value that came out, against plan and request. D303: less asked than planned."""
    planned = expect.limits()
    for name in LIMITS:
        effective = limits.effective.get(name)
        asked, plan = limits.requested.get(name), planned.get(name)
        target = max((v for v in (asked, plan) if v is not None), default=None)
        words, mend = _WORDS[name]
        if effective is not None and target is not None:
            floor = (
                target // expect.page_tokens * expect.page_tokens
                if name == "pool_tokens"
                else target
            )
            ledger = f"dsv41 plan --profile {expect.profile} --fleet FLEET --why"
            fix = f"{mend}; see the ledger: {ledger}"
            yield _compared(limits, name, effective=effective, target=target, floor=floor, fix=fix)
        if asked is not None and plan is not None and asked < plan:
            yield Finding(
                code="D303",
                level="warn",
                says=f"The engine was asked for {asked:,} {words}; profile {expect.profile} has "
                f"{plan:,}.",
                fix=f"dsv41 plan --profile {expect.profile} --fleet FLEET --format podman prints "
                "the commands of the profile",
            )


def _compared(
    limits: Limits, name: str, *, effective: int, target: int, floor: int, fix: str
) -> Finding:
    words = _WORDS[name][0]
    if effective >= floor:
        return Finding(code="D302", level="ok", says=f"{words}: {effective:,} of {target:,}.")
    why = f", capped by {limits.capped_by}" if name == "slots" and limits.capped_by else ""
    return Finding(
        code="D302",
        level="fail",
        says=f"The engine runs with {effective:,} {words}, {target:,} were planned or asked "
        f"for{why}.",
        fix=fix,
    )
