"""One meaning for the two names of the thinking switch.

Clients send `enable_thinking` (the habit of other models) or `thinking` (this model's template);
engines read only the second, so the client's switch has no effect and the answer thinks at length
(MiaAI-Lab/DeepSeek-V4.1-Flash-2xDGX-Spark#18, getainode/ainode#107). `thinking` wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OFF_WORDS = frozenset({"", "0", "false", "no", "none", "off", "disabled"})


def switched_on(value: object) -> bool:
    """Whether a client's value means on; unlike `bool`, it reads "false" and "0" as off."""
    if isinstance(value, str):
        return value.strip().lower() not in OFF_WORDS
    return bool(value)


def chosen(kwargs: Mapping[str, object] | None) -> bool | None:
    """Read `thinking`, else `enable_thinking`; None when neither is given, or both are null."""
    for name in ("thinking", "enable_thinking"):
        value = (kwargs or {}).get(name)
        if value is not None:
            return switched_on(value)
    return None


def disagree(kwargs: Mapping[str, object] | None) -> bool:
    """Whether both names are given and say different things."""
    given = [
        switched_on(value)
        for name in ("thinking", "enable_thinking")
        if (value := (kwargs or {}).get(name)) is not None
    ]
    return len(set(given)) > 1


def alias(kwargs: Mapping[str, object] | None) -> dict[str, object] | None:
    """Copy `chat_template_kwargs` with both names set to what is chosen.

    None, and a mapping with neither name, come back with their content unchanged.
    """
    if kwargs is None:
        return None
    thinking = chosen(kwargs)
    if thinking is None:
        return dict(kwargs)
    return {**kwargs, "thinking": thinking, "enable_thinking": thinking}
