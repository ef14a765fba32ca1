"""A capped verification: the engine's own acceptance gives the target's answers, whatever is cut.

The target and the draft are small Markov chains, so that the right distribution is known exactly.
Dead rows have logits of noise, as rows that were sent to other experts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hooked import hooked, published
from sglang.kernels.ops.speculative.dspark import blockwise_rejection as rejection
from sglang.kernels.ops.speculative.dspark.dspark_accept import AcceptGreedy
from sglang.srt.layers.moe.topk import StandardTopKOutput, TopK
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.dspark_components.dspark_draft import DraftParams, resolve_draft_params
from sglang.srt.speculative.dspark_components.dspark_planner import DSparkVerifyPlanner
from sglang.srt.speculative.ragged_verify import RaggedVerifyMode
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite

from dsv41.adapters.draft_rule import Rule
from dsv41.adapters.sglang import draft_tau, verify_cap

WORDS, DRAFTS, TOKENS, RUNS = 4, 3, 3, 120_000
ROWS = DRAFTS + 1
# chi-square of 4^3 - 1 = 63 degrees of freedom: 115 is passed by chance once in 100,000
LIMIT = 115.0
Cap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with (
        published(),
        hooked(
            verify_cap.ADAPTER,
            draft_tau.ADAPTER,
            DSV41_VERIFY_CAP="conf:0.3",
            SGLANG_RAGGED_VERIFY_MODE="cap-accept",
            DSV41_DRAFT_TAU="0.5",
        ),
    ):
        yield
    verify_cap.asked.cache_clear()
    draft_tau.asked.cache_clear()


class Chains:
    """A target p and a draft q over four words, and how sure the draft is after each word."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(4)
        self.target = torch.randn(WORDS, WORDS, generator=made)
        self.draft = self.target + torch.randn(WORDS, WORDS, generator=made)
        self.sure = torch.rand(WORDS, generator=made)

    def drafted(self, anchor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates [runs, ROWS], the anchor first, and the logits that they were drawn from."""
        tokens, logits = [anchor], []
        for _ in range(DRAFTS):
            logits.append(self.draft[tokens[-1]])
            drawn = torch.multinomial(torch.softmax(logits[-1], 1), 1).squeeze(1)
            tokens.append(drawn)
        return torch.stack(tokens, 1), torch.stack(logits, 1)

    def rows(self, candidates: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        """The target's logits [runs * ROWS, WORDS], noise in dead rows."""
        logits = self.target[candidates]
        dead = torch.arange(ROWS) >= live.view(-1, 1)
        logits[dead] = 3 * torch.randn(int(dead.sum()), WORDS)
        return logits.view(-1, WORDS)

    def expected(self) -> torch.Tensor:
        """The probability of each sequence of TOKENS words after word 0, flat."""
        step = torch.softmax(self.target.double(), 1)
        found = step[0]
        for _ in range(TOKENS - 1):
            found = (found.view(-1, WORDS, 1) * step).view(-1)
        return found


def by_prefix(chains: Chains, rule: Rule) -> Cap:
    """The confidence of a draft depends on the word before it, as the engine's head does."""
    return lambda candidates, _: rule.live(chains.sure[candidates[:, :-1]])


def by_itself(chains: Chains, rule: Rule) -> Cap:
    """One that looks at the drafted word itself."""
    return lambda candidates, _: rule.live(chains.sure[candidates[:, 1:]])


def answers(chains: Chains, cap: Cap, *, spared: int = 0) -> torch.Tensor:
    """TOKENS sampled words a run, [RUNS, TOKENS], by as many verifications as it takes."""
    said = torch.zeros(RUNS, TOKENS + ROWS, dtype=torch.long)
    length, anchor = torch.zeros(RUNS, dtype=torch.long), torch.zeros(RUNS, dtype=torch.long)
    noise, places = rejection.make_rejection_noise(5, "cpu"), torch.arange(RUNS)
    while (length < TOKENS).any():
        candidates, logits = chains.drafted(anchor)
        live = cap(candidates, logits)
        right, bonus, _ = rejection.BlockwiseRejection.execute(
            candidates=candidates,
            target_logits=chains.rows(candidates, live - spared),
            draft_logits=logits,
            target_temperatures=torch.ones(RUNS),
            draft_temperatures=torch.ones(RUNS),
            noise=noise,
            cutoff_verify_lens=live,
        )
        new = torch.cat([candidates[:, 1:], bonus.view(-1, 1)], 1)
        new[places, right.long()] = bonus
        for at in range(ROWS):
            takes = (at <= right) & (length < TOKENS)
            said[places[takes], length[takes]] = new[takes, at]
            length[takes] += 1
        anchor = bonus
    return said[:, :TOKENS]


def chi_square(said: torch.Tensor, expected: torch.Tensor) -> float:
    code = (said * torch.tensor([WORDS**2, WORDS, 1])).sum(1)
    counts = torch.bincount(code, minlength=len(expected)).double()
    due = expected * len(said)
    return float(((counts - due) ** 2 / due).sum())


@pytest.mark.parametrize(
    "rule", [Rule(thresholds=(0.3,)), Rule(thresholds=(0.6, 0.2)), Rule(count=1), Rule(count=2)]
)
def test_sampled_answers_have_the_targets_distribution(rule: Rule) -> None:
    torch.manual_seed(1)
    chains = Chains()
    cap = by_prefix(chains, rule)
    live = cap(chains.drafted(torch.zeros(1000, dtype=torch.long))[0], torch.empty(0))
    assert live.min() < ROWS  # something is cut
    assert chi_square(answers(chains, cap), chains.expected()) < LIMIT


def test_a_cap_may_look_at_the_word_itself() -> None:
    # the token of the last live row is verified like any other, so what is kept is the beginning
    # of an exact sample wherever it ends
    torch.manual_seed(1)
    chains = Chains()
    said = answers(chains, by_itself(chains, Rule(thresholds=(0.3,))))
    assert chi_square(said, chains.expected()) < LIMIT


def test_one_dead_row_too_many_is_seen() -> None:
    torch.manual_seed(1)
    chains = Chains()
    said = answers(chains, by_prefix(chains, Rule(count=2)), spared=1)
    assert chi_square(said, chains.expected()) > 10 * LIMIT


@pytest.mark.parametrize("rule", [Rule(thresholds=(0.3,)), Rule(count=1)])
def test_greedy_answers_are_the_targets(rule: Rule) -> None:
    torch.manual_seed(2)
    chains, words = Chains(), torch.arange(WORDS)
    candidates, _ = chains.drafted(words.repeat(5000))
    live = by_prefix(chains, rule)(candidates, torch.empty(0))
    right, bonus, _ = AcceptGreedy.execute(
        candidates=candidates,
        target_logits=chains.rows(candidates, live),
        verify_num_draft_tokens=ROWS,
        cutoff_verify_lens=live,
    )
    best = chains.target.argmax(1)
    assert (right < live).all()
    for at in range(DRAFTS):
        kept = at < right
        assert torch.equal(candidates[kept, at + 1], best[candidates[kept, at]])
    last = candidates[torch.arange(len(candidates)), right.long()]
    assert torch.equal(bonus.view(-1), best[last])


class Sync:
    """Notes what the ranks would agree on."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, list[int]]] = []

    def sync(self, site: object, rows: torch.Tensor) -> torch.Tensor:
        self.seen.append((site, rows.tolist()))
        return rows


def planner() -> Any:
    made = object.__new__(DSparkVerifyPlanner)
    made._ragged_verify_mode, made._tp_sync = RaggedVerifyMode.CAP_ACCEPT, Sync()
    made._budget_planner = None
    return made


def planned(made: Any, confidence: torch.Tensor | None) -> Any:
    return made._schedule_verify_lens(
        req_pool_indices=torch.arange(2),
        prefix_lens=torch.ones(2),
        device=torch.device("cpu"),
        confidence=confidence,
        budget=None,
    )


def test_the_engines_plan_is_the_rules() -> None:
    made = planner()
    rows = planned(made, torch.tensor([[0.9, 0.2, 1.0], [0.9, 0.9, 0.9]]))
    assert rows.tolist() == [2, 4]
    assert rows.dtype == torch.int32
    assert made._tp_sync.seen == [(SpecTpSyncSite.DSPARK_PLAN, [2, 4])]
    assert verify_cap.LIVE.buffer("cpu")[:2].tolist() == [2, 4]
    # a step without confidence is the engine's own, and none of its rows is dead
    assert planned(made, None) is None
    assert verify_cap.LIVE.buffer("cpu").min() == verify_cap.ALL


def routed(rows: int, *, is_draft: bool = False) -> Any:
    """The real router's choice for random scores, through its own forward."""
    torch.manual_seed(3)
    router = TopK(2, layer_id=0, is_draft=is_draft)
    return router.forward_native(torch.randn(rows, 8), torch.randn(rows, 16))


def in_a_verification(
    call: Callable[[], Any], *, mode: ForwardMode, requests: int, rows: int
) -> Any:
    batch = SimpleNamespace(
        batch_size=requests, forward_mode=mode, input_ids=torch.zeros(rows, dtype=torch.long)
    )
    return verify_cap.forward(lambda *_: call(), None, None, None, batch)


def test_dead_rows_go_where_their_first_row_goes() -> None:
    verify_cap.LIVE.write(torch.tensor([2, 4], dtype=torch.int32))
    stock = routed(8)
    found = in_a_verification(lambda: routed(8), mode=ForwardMode.TARGET_VERIFY, requests=2, rows=8)
    assert isinstance(found, StandardTopKOutput)
    wanted = [0, 1, 0, 0, 4, 5, 6, 7]
    assert torch.equal(found.topk_ids, stock.topk_ids[wanted])
    assert torch.equal(found.topk_weights, stock.topk_weights[wanted])
    assert not torch.equal(stock.topk_ids[2], stock.topk_ids[0])


@pytest.mark.parametrize(
    ("mode", "is_draft"),
    [(ForwardMode.DECODE, False), (ForwardMode.EXTEND, False), (ForwardMode.TARGET_VERIFY, True)],
)
def test_no_other_row_is_touched(mode: ForwardMode, is_draft: bool) -> None:
    verify_cap.LIVE.write(torch.tensor([1, 1], dtype=torch.int32))
    found = in_a_verification(lambda: routed(8, is_draft=is_draft), mode=mode, requests=2, rows=8)
    assert torch.equal(found.topk_ids, routed(8).topk_ids)


def test_the_drafts_temperature_is_scaled_where_it_is_read() -> None:
    temperatures = torch.tensor([[1.0], [0.6], [1e-5]])
    info = SimpleNamespace(temperatures=temperatures, top_ks=torch.tensor([50, 50, 1]))
    out = DraftParams(torch.zeros(4), torch.zeros(4, dtype=torch.bool), torch.zeros(4))
    found = resolve_draft_params(sampling_info=info, bs=3, out=out)
    assert found.temperatures.tolist() == pytest.approx([0.5, 0.3, 1e-5])
    assert found.step_temperatures.tolist() == pytest.approx([0.5, 0.3, 0.0])
    assert torch.equal(out.temperatures[:3], found.temperatures)  # the graphs' own buffer
    assert temperatures.view(-1).tolist() == pytest.approx([1.0, 0.6, 1e-5])  # the target's stay
    greedy = resolve_draft_params(sampling_info=None, bs=2, out=out)
    assert greedy.step_temperatures.tolist() == [0.0, 0.0]
