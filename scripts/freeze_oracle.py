#!/usr/bin/env python3
"""Freeze what an independent implementation of DeepSeek-V4.1 gives for the fixture.

Writes tests/cases/oracle.safetensors: 150 random token ids, every tenth position, and there the
normed final states. tests/test_model.py holds the local model to them. To be run again whenever the
fixture's body changes, in an environment of its own:

    python -m venv oracle && oracle/bin/pip install torch==2.13.0 numpy tokenizers safetensors \
        transformers==5.23.0 && oracle/bin/pip install --no-deps nemo-automodel==0.7.0 pillow .
    oracle/bin/python scripts/freeze_oracle.py CHECKPOINT tests/cases/oracle.safetensors

nemo-automodel 0.7.0 (NVIDIA, Apache-2.0) computes in float32. Two things keep it from giving the
same everywhere: its top-k does not say which of equal scores wins, so a stable one is put in its
place; and a value at the border of two FP8 or FP4 codes may fall to either side. The text is the
first random one where none does.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.deepseek_v41.config import DeepseekV41Config
from nemo_automodel.components.models.deepseek_v41.model import DeepseekV41ForCausalLM
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from dsv41.local.fixture.readout.fit import body

log = logging.getLogger("freeze_oracle")

TOKENS, EVERY = 150, 10
SAME = 1e-4  # float32 noise is some 1e-6; another code of a quantized value is 1e-3 and more


class Best(NamedTuple):
    """What torch.topk returns."""

    values: torch.Tensor
    indices: torch.Tensor


def stable_topk(self: torch.Tensor, k: int, dim: int = -1, **_: bool) -> Best:
    """Stand in for Tensor.topk: the lowest index wins among equals."""
    values, indices = self.sort(dim=dim, descending=True, stable=True)
    return Best(values.narrow(dim, 0, k), indices.narrow(dim, 0, k))


def oracle(directory: Path) -> Any:
    """Build the independent implementation with the fixture's weights, without its head."""
    raw = json.loads((directory / "config.json").read_text())
    for key in ("architectures", "model_type", "quantization_config"):
        raw.pop(key)
    raw["dtype"] = raw["text_config"]["dtype"] = "float32"
    config = DeepseekV41Config(**raw)
    config.text_config.dtype = "float32"
    backend = BackendConfig(
        attn="eager",
        linear="torch",
        rms_norm="torch_fp32",
        experts="torch_mm",
        dispatcher="torch",
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    model = DeepseekV41ForCausalLM(config, backend=backend, tokenizer=tokenizer).eval()
    loaded = model.load_state_dict(
        model.state_dict_adapter.from_hf(tensors(directory)), strict=False
    )
    if loaded.missing_keys:
        raise SystemExit(f"the oracle lacks {loaded.missing_keys}")
    return model.float().model


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint."""
    found = {}
    for path in sorted(directory.glob("model-*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def main(checkpoint: Path, out: Path) -> None:
    """Find a text on which both agree everywhere, and freeze it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.Tensor.topk = stable_topk
    theirs = oracle(checkpoint)
    ours = body(checkpoint)
    for seed in range(100):
        ids = torch.randint(3, 128000, (TOKENS,), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            states = theirs(ids[None])[0][0]
        mine = ours.states(ours.cache(slots=1, capacity=TOKENS), slot=0, tokens=ids.tolist())
        off = (states.double() - mine).abs().amax(1)
        same = int((off < SAME).sum())
        log.info("seed %d: %d of %d the same, at most %.1e off", seed, same, TOKENS, off.max())
        if same == TOKENS:
            at = torch.arange(0, TOKENS, EVERY)
            frozen = {"ids": ids.int(), "positions": at.int(), "states": states[at].contiguous()}
            return save_file(frozen, out)
    raise SystemExit("the two implementations differ on every text")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
