"""Image placeholders in text: our adapter in 0.5.21, the publisher's package in 0.5.23."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import scripted_sglang
from hooked import hooked
from transformers import PreTrainedTokenizerFast

from dsv41.adapters import install
from dsv41.adapters.sglang import image_text
from dsv41.errors import CheckFailed
from dsv41.guards.image_text import PLACEHOLDER

HAS_ENCODER = find_spec(image_text.ENCODER) is not None
IMAGE_TOKEN = 129_264
CALL = {"name": "f", "arguments": f'{{"a": "{PLACEHOLDER}"}}'}
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "text": [{"role": "user", "content": f"what is {PLACEHOLDER}?"}],
    "block": [{"role": "user", "content": [{"type": "text", "text": f"what is {PLACEHOLDER}?"}]}],
    "history": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": PLACEHOLDER, "reasoning_content": PLACEHOLDER},
        {"role": "user", "content": "b"},
    ],
    "tool": [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "1", "type": "function", "function": CALL}],
        },
        {"role": "tool", "tool_call_id": "1", "content": f"found {PLACEHOLDER}"},
    ],
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    with hooked(image_text.ADAPTER, DSV41_IMAGE_TEXT="1"):
        yield


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder: Path = scripted_sglang.write_model(tmp_path_factory.mktemp("model"))
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.skipif(not HAS_ENCODER, reason="this tree has no encoder of its own: see below")
@pytest.mark.parametrize("name", MESSAGES)
def test_the_engines_own_encoder(tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    encoder = importlib.import_module(image_text.ENCODER)
    original = encoder.encode_messages.__wrapped__
    messages = MESSAGES[name]
    before = repr(messages)
    prompt, media = encoder.encode_messages(
        messages, thinking_mode="chat", return_multi_modal_data=True
    )
    assert repr(messages) == before
    assert "[image]" in prompt
    assert not media["images"]
    assert IMAGE_TOKEN not in tokenizer.encode(prompt)
    try:  # why it is needed: an error, or a token of an image that is not there
        assert IMAGE_TOKEN in tokenizer.encode(original(messages, thinking_mode="chat"))
    except ValueError as error:
        assert PLACEHOLDER in str(error)  # noqa: PT017 - either of the two


@pytest.mark.skipif(not HAS_ENCODER, reason="this tree has no encoder of its own: see below")
def test_images_stay_images() -> None:
    encoder = importlib.import_module(image_text.ENCODER)
    text = {"type": "text", "text": f"unlike {PLACEHOLDER}"}
    messages = [{"role": "user", "content": [IMAGE, text]}]
    prompt, media = encoder.encode_messages(
        messages, thinking_mode="chat", return_multi_modal_data=True
    )
    assert len(media["images"]) == 1
    assert prompt.count(PLACEHOLDER) == 1


@pytest.mark.skipif(HAS_ENCODER, reason="this tree encodes by itself: see above")
@pytest.mark.parametrize("name", MESSAGES)
def test_the_publishers_package_needs_no_adapter(
    tokenizer: PreTrainedTokenizerFast, name: str
) -> None:
    renderer = importlib.import_module(image_text.PACKAGE)
    recipe = renderer.DeepSeekRecipe.from_hf_tokenizer("dsv41", tokenizer)
    urls: list[str] = []
    ids = recipe.encode({"messages": MESSAGES[name], "thinking": False}, image_urls=urls)
    assert PLACEHOLDER in tokenizer.decode(ids)  # spelled in letters
    assert IMAGE_TOKEN not in ids
    assert not urls


def test_a_tree_with_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_text, "find_spec", lambda _: None)
    with pytest.raises(CheckFailed, match="D140 adapter image_text"):
        install.install("sglang", (image_text.ADAPTER,), {"DSV41_IMAGE_TEXT": "1"})
