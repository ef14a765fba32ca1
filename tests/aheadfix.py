"""What vLLM hands to a worker, as far as reading ahead looks at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


def runner(*requests: tuple[str, int, int]) -> Any:
    """Request states as vLLM's runner has them: name, tokens computed, tokens of the prompt."""
    return SimpleNamespace(
        req_states=SimpleNamespace(
            req_id_to_index={name: at for at, (name, _, _) in enumerate(requests)},
            num_computed_prefill_tokens=np.array([done for _, done, _ in requests]),
            prefill_len=SimpleNamespace(np=np.array([length for _, _, length in requests])),
        )
    )


def step(scheduled: dict[str, int], new: dict[str, list[int]], finished: set[str]) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prefill_token_ids=ids) for name, ids in new.items()
        ],
        finished_req_ids=finished,
    )
