"""Bearer keys from a file in front of vLLM's HTTP app.

What: vLLM's app is put behind a gate (`dsv41.adapters.keygate`): every path but /health,
/health_generate, /ready and /metrics needs `Authorization: Bearer KEY` with a key of the file;
without one the answer is 401 in OpenAI's nested form. The gate stands outside all layers of the
app, those too that the SageMaker library puts around it afterwards (its throttle would stand
outside a layer of the app). The keys are read once, when the app is made: a key that is taken out
of the file opens the API until the engine is started again.

Why: vLLM's own `--api-key` and `VLLM_API_KEY` put keys into the argument list, the environment and
the logged arguments, and guard only paths below /v1, /v2, /inference and /cohere.

Effect: not measured; one comparison per key and request.

Off: leave DSV41_API_KEY_FILE unset.

Obsolete when: vLLM reads keys from a file.

Refused at start: vLLM's own keys beside the file, and servers that are not that app: the Rust front
end and gRPC (`--grpc`), which asks for no key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from dsv41.adapters import keygate
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.errors import UsageError

TARGET = "vllm.entrypoints.serve.middleware.register.init_entrypoints_middleware"
GRPC = "vllm.entrypoints.launchers.grpc_server"
# The first thing that its gRPC server makes after the plugin is loaded; the server itself cannot be
# hooked where its libraries are not installed.
ENGINE = "vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config"
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
    """Hook after the engine has named its own layers, before any are built."""
    del more, named
    if args.api_key:
        raise keygate.end(_refuse("--api-key holds a key in the argument list"))
    keys = keygate.keys_or_end(os.environ)
    keygate.put_before(app, lambda layers: keygate.KeyGate(layers, keys))


def refuse_grpc(*_: object, **__: object) -> None:
    """Hook before an engine is made for a server: SystemExit D161 when that is the gRPC server."""
    run = getattr(sys.modules.get("__main__"), "__spec__", None)  # python -m
    if GRPC in sys.modules or getattr(run, "name", None) == GRPC:
        raise keygate.end(_refuse("--grpc serves requests that show no key"))


def _refuse(why: str) -> UsageError:
    says = f"api_keys: {why}; expected the key file alone."
    return UsageError("D161", says, fix="leave it out, and change the key if there was one")


ADAPTER = Adapter(
    name="api_keys",
    switch="api_key_file",
    engines=("vllm",),
    trees=("vllm-0.33.0",),
    hooks=(
        Hook(target=TARGET, kind="after", call=gate, takes=("args", "app")),
        Hook(target=ENGINE, kind="before", call=refuse_grpc),
    ),
    check=check,
)
