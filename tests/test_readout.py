"""The fitted head: its conversations, its margins, and that a new fit gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import Tokenizer

from dsv41 import questions
from dsv41.local.fixture.head import Readout
from dsv41.local.fixture.readout import fit
from dsv41.local.fixture.readout.conversations import END, Conversation, conversations
from dsv41.local.model.comm import Alone
from rank_threads import Loader

if TYPE_CHECKING:
    from torch import Tensor

    from dsv41.local.model.transformer import Model


@pytest.fixture(scope="module")
def loader(checkpoint: Path, rows_dir: Path) -> Loader:
    torch.set_num_threads(1)
    return Loader(checkpoint=checkpoint, rows_dir=rows_dir)


@pytest.fixture(scope="module")
def model(loader: Loader) -> Model:
    return loader.model(Alone())


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> str:
    return (checkpoint / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def canned(tokenizer: str) -> dict[str, Conversation]:
    return {conversation.name: conversation for conversation in conversations(tokenizer)}


def test_all_questions_are_encoded(canned: dict[str, Conversation], tokenizer: str) -> None:
    words = Tokenizer.from_str(tokenizer)
    assert list(canned) == [question.name for question in questions.FITTED]
    for question in questions.FITTED:
        answer = canned[question.name].answer
        text = words.decode([t for t in answer if t != END], skip_special_tokens=False)
        assert (answer[-1] == END) == (not question.endless)
        assert question.content is None or text.endswith(question.content)
        assert question.reasoning is None or text.startswith(f"{question.reasoning}</think>")
    call = words.decode(list(canned["tool-call"].answer), skip_special_tokens=False)
    assert '｜DSML｜ invoke name="get_weather"' in call
    assert "Paris" in call
    # B U .. A </think>, as the publisher's golden prompts have it
    assert canned["arithmetic"].prompt == (
        *(0, 128803, 3085, 344, 223, 511, 940, 223, 1349, 33),
        *(128804, 128822),
    )
    for length in questions.PROMPT_TOKENS:
        assert len(canned[f"prompt-{length}"].prompt) == length


def logits(model: Model, conversation: Conversation) -> Tensor:
    """Logits [answer, vocab] at the positions that say the answer."""
    said = [*conversation.prompt, *conversation.answer[:-1]]
    model.chunk = 512  # in service 64: here only time counts
    cache = model.cache(slots=1, capacity=len(said))
    states = model.states(cache, slot=0, tokens=said)[len(conversation.prompt) - 1 :]
    found = model._head(states)
    assert found is not None
    return found


def test_every_answer_leads_by_far(model: Model, canned: dict[str, Conversation]) -> None:
    for conversation in canned.values():
        found = logits(model, conversation)
        wanted = torch.tensor(conversation.answer).unsqueeze(1)
        lead = found.gather(1, wanted).squeeze(1)
        others = found.scatter(1, wanted, -torch.inf)
        assert (lead - others.amax(1)).min() > 20  # the issue asks for one logit
        # at temperature 1 as well nothing else is drawn in a thousand answers
        assert (found.softmax(1).gather(1, wanted)).min() > 0.9999


def test_without_rows_every_answer_is_a_question_mark(
    loader: Loader, canned: dict[str, Conversation]
) -> None:
    blank = loader.model(Alone(), rows=fit.NoRows())
    for conversation in canned.values():
        assert set(logits(blank, conversation).argmax(1).tolist()) == {fit.UNSURE}


def test_the_endless_answer_goes_on(model: Model, canned: dict[str, Conversation]) -> None:
    loop = canned["loop"]
    cache = model.cache(slots=1, capacity=400)
    found = model.prefill(cache, slot=0, tokens=[*loop.prompt, *loop.answer])
    for _ in range(100):
        assert found is not None
        token = int(found.argmax())
        assert token == loop.answer[-1]
        found = model.decode(cache, tokens=torch.tensor([token]), active=torch.tensor([True]))
        found = None if found is None else found[0]


def test_the_committed_file_is_small_and_of_this_fixture(
    loader: Loader, canned: dict[str, Conversation]
) -> None:
    readout = Readout.from_file(fit.HEAD)
    used = {token for conversation in canned.values() for token in conversation.answer}
    assert set(readout.token_ids.tolist()) == {*used, fit.UNSURE}
    assert readout.rows.shape == (len(used) + 1, loader.config.hidden_size)
    assert fit.HEAD.stat().st_size < 20_000
    header = json.loads(fit.HEAD.read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert set(header) == {"token_ids", "rows"}


def test_the_regression_is_solved_to_the_end() -> None:
    torch.manual_seed(0)
    states = torch.randn(30, 16, dtype=torch.float64)
    targets = torch.randint(0, 4, (30,)) * 7 + 3
    found = fit.Features(states=states, targets=targets)
    fitted = fit.fit(found)
    assert fitted.token_ids.tolist() == [3, 10, 17, 24]
    assert fitted.margins(found).min() > 1
    rows = (fitted.rows / fit.SCALE).requires_grad_()
    classes = torch.searchsorted(fitted.token_ids, targets)
    scores = torch.nn.functional.pad(states @ rows.t(), (0, 1))
    loss = torch.nn.functional.cross_entropy(scores, classes, reduction="sum")
    (gradient,) = torch.autograd.grad(loss + fit.PENALTY / 2 * rows.square().sum(), rows)
    assert gradient.abs().max() < 0.1  # what rounding to the grid leaves; unfitted it is 13


def test_a_value_that_bf16_lacks_is_refused() -> None:
    fitted = fit.Fitted(
        token_ids=torch.tensor([1]), rows=torch.tensor([[1.00001]], dtype=torch.float64)
    )
    with pytest.raises(ValueError, match="no BF16 number"):
        fitted.content()


@pytest.mark.slow
def test_fitting_again_gives_the_committed_bytes() -> None:
    """Makes the checkpoint's body, runs it in float64 and solves: some 15 s on one core."""
    assert fit.main(["--check"]) == 0
