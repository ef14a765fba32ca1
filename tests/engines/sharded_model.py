"""SGLang's V4.1 model and draft, built on a CPU as one of several ranks, and tensors to load.

Nothing is served: a rank is built within `rank`, loads what the checkpoint maker draws, and its
parameters are looked at. Two things of a GPU alone stand aside: the rotary table's object and the
warm-up of the hyper-connection kernels. Neither has a weight.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.configs.deepseek_v41 import DeepseekV41Config
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.models import deepseek_v4
from sglang.srt.models.deepseek_v4 import DeepseekV4ForCausalLM
from sglang.srt.server_args import ServerArgs

from dsv41.local.fixture import geometries, grid, tensors
from dsv41.local.model.config import ModelConfig

_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


@dataclass(frozen=True)
class Group:
    """A group of ranks that never talk."""

    rank_in_group: int
    world_size: int
    cpu_group: None = None
    device_group: None = None
    is_first_rank: bool = True
    is_last_rank: bool = True

    @property
    def rank(self) -> int:
        return self.rank_in_group


def raw() -> dict[str, Any]:
    """config.json of the local engine's fixture: no Engram, but three draft stages."""
    found = geometries.config("fixture")
    found["text_config"] |= {
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
        "num_nextn_predict_layers": 3,
    }
    return found


def config() -> DeepseekV41Config:
    return DeepseekV41Config(**raw())


def quantization() -> Fp8Config:
    found = Fp8Config.from_config(raw()["quantization_config"])
    found.is_fp4_experts = True  # as the engine's loader sets it from expert_dtype
    return found


def checkpoint(*, experts: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors but the vocabulary's, by their official names; routed experts where asked."""
    for spec in tensors.specs(ModelConfig.from_dict(raw())):
        if ".experts." in spec.name and not (experts and spec.name.startswith("mtp.")):
            continue
        if spec.name.startswith(("embed", "head", "image_")) or "markov" in spec.name:
            continue
        drawn = bytearray(grid.draw(spec.name, count=spec.count, grid=spec.grid, dtype=spec.dtype))
        yield (
            spec.name,
            torch.frombuffer(drawn, dtype=_DTYPES[spec.dtype]).reshape(spec.shape),
        )


def publish(folder: Path) -> None:
    """What a scheduler process tells the engine's modules before it builds a model."""
    (folder / "config.json").write_text(json.dumps(raw()))
    args = ServerArgs(
        model_path=str(folder), device="cpu", tp_size=1, disable_shared_experts_fusion=True
    )
    ranks = runtime_context.SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    runtime_context.publish(args, role="scheduler", ranks=ranks)


def stand_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put away the two things that need a GPU; see above."""
    monkeypatch.setattr(deepseek_v4, "get_rope_wrapper", lambda *_, **__: torch.nn.Identity())
    monkeypatch.setattr(DeepseekV4ForCausalLM, "_prewarm_mhc_kernels", lambda _: None)


@contextmanager
def rank(number: int, tp: int, *, ep: int = 1) -> Iterator[None]:
    """What is built within is rank `number` of `tp`."""
    group, alone = Group(number, tp), Group(0, 1)
    inner = tp // ep
    with runtime_context.get_parallel().override(
        tp_size=tp,
        tp_rank=number,
        attn_tp_size=tp,
        attn_tp_rank=number,
        attn_cp_size=1,
        tp_group=group,
        attn_tp_group=group,
        pp_group=alone,
        moe_ep_size=ep,
        moe_ep_rank=number // inner,
        moe_tp_size=inner,
        moe_tp_rank=number % inner,
    ):
        yield


def built(model: Any, number: int, tp: int, *, ep: int = 1) -> Any:
    """A model of rank `number` of `tp`, loaded by the engine's own loader."""
    with rank(number, tp, ep=ep):
        found = model(copy.copy(config()), quantization())
        found.load_weights(checkpoint(experts=model is not DeepseekV4ForCausalLM))
    return found


def parameters(model: Any) -> dict[str, torch.Tensor]:
    """By name; 8-bit floats as the bytes that they are.

    Off CUDA a loaded layer holds the next one too: each is taken under its own name.
    """
    narrow = (torch.float8_e4m3fn, torch.float8_e8m0fnu)
    return {
        name: value.data.view(torch.uint8) if value.dtype in narrow else value.data
        for name, value in model.named_parameters(remove_duplicate=False)
        if "_next_layer" not in name
    }
