"""What a profile must not say: to its tree, to itself, and what is refused wherever it stands.

UsageError D103 when the tree lacks what a knob asks for, D104 for a contradiction, Unsafe D106 for
a setting that has cost people their data, their answers or their machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from dsv41.engines.trees import ABSENT, TREES, Tree
from dsv41.errors import Unsafe, UsageError
from dsv41.geometry import pad_attention
from dsv41.knobs import KNOBS, OFF, Value
from dsv41.profile import Profile

# the model's axes that are cut over ranks (config.json of the released checkpoint)
HEADS, GROUPS, EXPERTS, EXPERT_WIDTH, HASH_COLUMNS = 64, 8, 384, 2304, 24
SLICE = 64  # below this the recipe's own launcher refuses (TP8 with EP 1: slices of 288)
BLOCK = 5  # the checkpoint's dspark_block_size
SHM_LIMIT_GIB = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A contradiction: which knob is wrong when `wrong` says so, and what would be right.

    `right` is the nearest value that is allowed, None when no value of this knob is.
    """

    engines: tuple[str, ...]
    key: str
    wrong: Callable[[Profile], bool]
    allowed: str
    right: Callable[[Profile], Value | None]


def capabilities(profile: Profile, build: Tree) -> None:
    """UsageError D103 for the first knob that is on and that the tree cannot serve."""
    for name, rule in KNOBS[profile.engine].items():
        asked = rule.needs and profile.on(name) and profile[name] != rule.as_is
        if asked and build.can(rule.needs) == ABSENT:
            raise UsageError(
                "D103",
                f"{profile.origin(name)}: knobs.{name} is {profile[name]!r}, but engine tree "
                f"{build.name} has neither a flag nor an adapter for {rule.needs}.",
                fix=_without(profile, name),
            )


def _without(profile: Profile, name: str) -> str:
    """The steps to do without a capability: the knob turned off, or a tree that has it."""
    rule = KNOBS[profile.engine][name]
    off = OFF if rule.as_is is None else (*OFF, rule.as_is)
    steps = [profile.mend(name, value) for value in off if rule.allows(value)][:1]
    able = [tree for tree in TREES.values() if tree.engine == profile.engine]
    steps += [f"--tree {tree.name}" for tree in able if tree.can(rule.needs) != ABSENT]
    return ", or ".join(steps) or f"omit {name} in a profile of your own that extends this one"


def contradictions(profile: Profile) -> None:
    """UsageError D104 for the first rule that the profile breaks, naming file, key and allowed."""
    for rule in RULES:
        if profile.engine in rule.engines and rule.wrong(profile):
            right = rule.right(profile)
            others = [flag for name, flag in profile.flags.items() if name != rule.key]
            beside = f", beside {' '.join(others)}" if others else ""
            raise UsageError(
                "D104",
                f"{profile.origin(rule.key)}: knobs.{rule.key} is {profile.get(rule.key)!r}"
                f"{beside}; allowed: {rule.allowed}.",
                fix=f"take another tp than {profile['tp']}"
                if right is None
                else profile.mend(rule.key, right),
            )


def refused(profile: Profile) -> None:
    """Unsafe D106 for a setting that is never served."""
    for key, reason in _refused(profile):
        raise Unsafe(
            "D106",
            f"{profile.origin(key)}: knobs.{key} is {profile.get(key)!r}, which is refused: "
            f"{reason}.",
            fix=profile.mend(key, _SERVED.get(key, False)),
        )


def expert_slice(profile: Profile) -> int:
    """Columns of a routed expert on one rank: 2,304 cut over tp / ep ranks; 0 if that fails."""
    tp, ep = profile.integer("tp"), profile.integer("ep")
    return 0 if tp % ep or EXPERT_WIDTH % (tp // ep) else EXPERT_WIDTH // (tp // ep)


def all_padding_rank(profile: Profile) -> bool:
    """Whether a rank holds no real attention group, so that its scales are never written."""
    tp, layout = profile.integer("tp"), str(profile.get("layout") or "legal")
    padding = pad_attention(heads=HEADS, groups=GROUPS, tp=tp, layout=layout)
    return padding.local_groups * (tp - 1) >= GROUPS


def _legal_ep(profile: Profile) -> int | None:
    """The least number of expert groups that the rules of ep allow at this tp."""
    tp = profile.integer("tp")
    for ep in range(1, tp + 1):
        columns, rest = divmod(EXPERT_WIDTH * ep, tp)
        if tp % ep == EXPERTS % ep == rest == columns % SLICE == 0:
            return ep
    return None


def _divides(profile: Profile) -> bool:
    return GROUPS % profile.integer("tp") == 0


def _refused(profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.get("offload") != "nvme":
        yield "offload", "189 GiB of Engram tables in memory take the host down"
    if profile.on("engram_host_table"):
        yield "engram_host_table", "upstream's host table pins 189 GiB of memory"
    if profile.on("hierarchical_cache"):
        yield "hierarchical_cache", "it corrupts the sliding-window cache of V4 (sglang #33656)"
    if profile.engine == "sglang" and profile.on("expandable_segments"):
        yield "expandable_segments", "SGLang's logits are NaN for any prefill above 64 tokens"
    if profile.on("fused_finalize"):
        yield "fused_finalize", "the public recipe names it among what must never be on"
    if profile.on("privileged"):
        yield "privileged", "/dev/infiniband, IPC_LOCK and memlock are enough"
    if profile.on("ipc_host"):
        yield "ipc_host", "the limit on /dev/shm would not hold, and podman refuses the pair"
    if profile.integer("shm_gib") > SHM_LIMIT_GIB:
        yield "shm_gib", f"it is carved out of the one memory: {SHM_LIMIT_GIB} GiB at most"


# what a knob that is refused must be; all others are switches, and off
_SERVED: Mapping[str, Value] = {"offload": "nvme", "shm_gib": SHM_LIMIT_GIB}
_SGLANG, _VLLM = ("sglang",), ("vllm",)
_BOTH = ("sglang", "vllm")
_COLUMNS = ("strided", "contiguous-columns")
RULES = (
    Rule(
        engines=_BOTH,
        key="ep",
        wrong=lambda p: p.integer("tp") % p.integer("ep") != 0,
        allowed="a divisor of tp",
        right=_legal_ep,
    ),
    Rule(
        engines=_BOTH,
        key="ep",
        wrong=lambda p: expert_slice(p) % SLICE != 0 or not expert_slice(p),
        allowed=f"one that leaves an expert's {EXPERT_WIDTH} columns in slices of a multiple of "
        f"{SLICE}: {EXPERT_WIDTH} ep / tp",
        right=_legal_ep,
    ),
    Rule(
        engines=_BOTH,
        key="ep",
        wrong=lambda p: EXPERTS % p.integer("ep") != 0,
        allowed=f"a divisor of the {EXPERTS} routed experts",
        right=_legal_ep,
    ),
    Rule(
        engines=_SGLANG,
        key="tp_pad",
        wrong=lambda p: not p.on("tp_pad") and not _divides(p),
        allowed=f"true where tp does not divide the {GROUPS} output groups",
        right=lambda _: True,
    ),
    Rule(
        engines=_VLLM,
        key="tp",
        wrong=lambda p: not _divides(p),
        allowed=f"a divisor of the {GROUPS} output groups: vLLM has no padding",
        right=lambda p: max(
            n for n in range(1, GROUPS + 1) if n <= p.integer("tp") and GROUPS % n == 0
        ),
    ),
    Rule(
        engines=_SGLANG,
        key="scale_repair",
        wrong=lambda p: all_padding_rank(p) and not p.on("scale_repair"),
        allowed="true where a rank is all padding: its layers would fall to Triton",
        right=lambda _: True,
    ),
    Rule(
        engines=_SGLANG,
        key="fp8_gemm",
        wrong=lambda p: p.on("mxfp8_backend") and p["fp8_gemm"] != "flashinfer_cutlass",
        allowed="'flashinfer_cutlass' where mxfp8_backend is on",
        right=lambda _: "flashinfer_cutlass",
    ),
    Rule(
        engines=_SGLANG,
        key="pool_tokens",
        wrong=lambda p: p.integer("pool_tokens") < p.integer("context"),
        allowed="at least one full context",
        right=lambda p: p.integer("context"),
    ),
    Rule(
        engines=_SGLANG,
        key="graph_slots",
        wrong=lambda p: p.integer("graph_slots") > p.integer("slots"),
        allowed="at most slots",
        right=lambda p: p.integer("slots"),
    ),
    Rule(
        engines=_SGLANG,
        key="ragged_verify",
        wrong=lambda p: p["ragged_verify"] == "compact",
        allowed="'static' or 'cap-accept': Engram's verify asserts one equal block a request",
        right=lambda _: "static",
    ),
    Rule(
        engines=_SGLANG,
        key="ragged_verify",
        wrong=lambda p: p.on("verify_cap") and p["ragged_verify"] != "cap-accept",
        allowed="'cap-accept' where verify_cap is on: no other mode has a cap and equal blocks",
        right=lambda _: "cap-accept",
    ),
    Rule(
        engines=_SGLANG,
        key="tool_call_parser",
        wrong=lambda p: p["tool_call_parser"] != "deepseekv41",
        allowed="'deepseekv41' with reasoning_parser 'deepseek-v41', the pair the engine takes",
        right=lambda _: "deepseekv41",
    ),
    Rule(
        engines=_SGLANG,
        key="reasoning_parser",
        wrong=lambda p: p["reasoning_parser"] != "deepseek-v41",
        allowed="'deepseek-v41' with tool_call_parser 'deepseekv41', the pair the engine takes",
        right=lambda _: "deepseek-v41",
    ),
    Rule(
        engines=_VLLM,
        key="draft_window",
        wrong=lambda p: p["drafter"] != "off" and p.integer("draft_window") % BLOCK != 0,
        allowed=f"a multiple of the checkpoint's block of {BLOCK}",
        right=lambda p: max(p.integer("draft_window") // BLOCK, 1) * BLOCK,
    ),
    Rule(
        engines=_VLLM,
        key="partition",
        wrong=lambda p: p["partition"] not in _COLUMNS,
        allowed="'strided' or 'contiguous-columns': vLLM gathers whole columns",
        right=lambda p: _COLUMNS[HASH_COLUMNS % p.integer("tp") != 0],
    ),
    Rule(
        engines=_VLLM,
        key="partition",
        wrong=lambda p: p["partition"] == "strided" and HASH_COLUMNS % p.integer("tp") != 0,
        allowed=f"'contiguous-columns' where tp does not divide the {HASH_COLUMNS} columns",
        right=lambda _: "contiguous-columns",
    ),
    Rule(
        engines=_BOTH,
        key="nccl_min_channels",
        wrong=lambda p: (
            int(p.get("nccl_min_channels") or 1) > int(p.get("nccl_max_channels") or 64)
        ),
        allowed="at most nccl_max_channels",
        right=lambda p: int(p.get("nccl_max_channels") or 64),
    ),
)
