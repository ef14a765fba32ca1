"""Bearer keys from a file in front of vLLM's HTTP app.

What: behind everything that vLLM itself puts around its app comes a gate (dsv41.adapters.keygate):
every path but /health, /health_generate, /ready and /metrics needs `Authorization: Bearer KEY` with
a key of the file; without one the answer is 401 in OpenAI's nested form.

Why: vLLM's own `--api-key` and `VLLM_API_KEY` put keys into the argument list, the environment and
the logged arguments, and guard only paths below /v1, /v2, /inference and /cohere.

Effect: not measured; one comparison per key and request.

Off: leave DSV41_API_KEY_FILE unset.

Obsolete when: vLLM reads keys from a file.

Refused at start: vLLM's own keys beside the file, and its Rust front end, which is another server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dsv41.adapters import keygate
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import UsageError

TARGET = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"
OFF_WORDS = ("", "0", "false", "off")


def check(environ: Mapping[str, str]) -> None:
    """The file is judged when the engine starts, minutes before it serves.

    Raises:
        UsageError: D070-D072 of the file; D161, when something else would serve or hold keys.
    """
    keygate.read_keys(environ)
    if environ.get("VLLM_API_KEY"):
        raise _refuse("VLLM_API_KEY holds a key in the environment")
    if environ.get("VLLM_USE_RUST_FRONTEND", "").lower() not in OFF_WORDS:
        raise _refuse("VLLM_USE_RUST_FRONTEND serves requests without Python")


def gate(_: object, args: Any, app: Any, *more: object, **named: object) -> None:
    """Hook after the engine has put its own layers around the app: the gate is the outermost."""
    del more, named
    if args.api_key:
        raise _refuse("--api-key holds a key in the argument list")
    app.add_middleware(keygate.KeyGate, given=keygate.read_keys(os.environ))


def _refuse(why: str) -> UsageError:
    says = f"api_keys: {why}; expected the key file alone."
    return UsageError("D161", says, fix="leave it out, and change the key if there was one")


ADAPTER = Adapter(
    name="api_keys",
    switch="api_key_file",
    engines=("vllm",),
    trees=("vllm-0.33.0",),
    hooks=(Hook(target=TARGET, kind="after", call=gate, takes=("args", "app")),),
    check=check,
)
