"""Bearer keys from a file in front of SGLang's HTTP app.

What: before the app is served it is put behind a gate (`dsv41.adapters.keygate`): every path but
/health, /health_generate, /ready and /metrics needs `Authorization: Bearer KEY` with a key of the
file, native and admin paths and unknown ones too; without one the answer is 401 in OpenAI's nested
form. The requests that SGLang sends to itself while it starts carry a key made for that start. The
keys are read once, when the app is served: a key that is taken out of the file opens the API until
the engine is started again.

Why: `--api-key` stands in the process list and in the logged `server_args`, is one key only, and
lets WebSockets through unasked (`sglang/srt/utils/auth.py`).

Effect: not measured; one comparison per key and request.

Off: leave DSV41_API_KEY_FILE unset.

Obsolete when: SGLang reads several keys from a file.

The gate stands outside the app's own middleware, so that nothing of a stranger's request is parsed,
counted or unpacked. Refused at start: the gRPC servers and the encoder server, which are not the
app behind the gate, and SGLang's own `--api-key` and `--admin-api-key`. (Several HTTP workers and
the Rust server are refused with any adapter: `workers`.)
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from dsv41.adapters import keygate
from dsv41.adapters.adapter import Adapter, Hook
from dsv41.adapters.keygate import App, KeyGate
from dsv41.errors import CheckFailed
from dsv41.guards.keys import Keys

HTTP = "sglang.srt.entrypoints.http_server"
# settings of SGLang under which a listener is not the gated app
_BYPASSES = {
    "grpc_port": "--grpc-port",
    "grpc_mode": "--grpc-mode",
    "smg_grpc_mode": "--smg-grpc-mode",
    "encoder_only": "--encoder-only",
}
_OWN_KEYS = {"api_key": "--api-key", "admin_api_key": "--admin-api-key"}
_gates: list[KeyGate] = []  # of the app of this process; empty until it is served


def judge(settings: Any) -> None:
    """CheckFailed D155 or D156 when the resolved settings leave a way past the keys."""
    past = [flag for name, flag in _BYPASSES.items() if getattr(settings, name, None)]
    if past:
        says = f"{', '.join(past)} opens a listener that asks for no key; expected HTTP alone."
        raise CheckFailed("D155", says, fix=f"leave out {' and '.join(past)}")
    twice = [flag for name, flag in _OWN_KEYS.items() if getattr(settings, name, None)]
    if twice:
        says = f"{', '.join(twice)} stands beside the key file; expected the key file alone."
        raise CheckFailed("D156", says, fix=f"leave out {' and '.join(twice)}, and change that key")


def _judge_resolved(_: object, server_args: Any) -> None:
    from sglang.srt.arg_groups.overrides import resolving_view  # noqa: PLC0415

    try:
        judge(resolving_view(server_args))
    except CheckFailed as error:
        raise keygate.end(error) from error


def _check(environ: Mapping[str, str]) -> None:
    """The file is judged when the engine starts, minutes before it serves."""
    keygate.read_keys(environ)


def _gate(*_: object, **__: object) -> None:
    from sglang.srt.entrypoints.http_server import app  # noqa: PLC0415

    put_before(app, keygate.keys_or_end(os.environ))


def put_before(app: Any, keys: Keys) -> None:
    """Make the gate the outermost layer of an app that has not been called yet.

    An app (Starlette's) builds its layers at its first call, from what was added until then;
    SGLang adds its own after this.
    """
    if app.middleware_stack is not None:
        says = "SGLang's HTTP app has served already; expected to put the keys before it."
        raise keygate.end(CheckFailed("D157", says, fix="report this with the engine's log"))

    def gate(layers: App) -> KeyGate:
        _gates[:] = [KeyGate(layers, keys, Keys((secrets.token_urlsafe(32).encode(),)))]
        return _gates[0]

    keygate.put_before(app, gate)


def _with_a_key_of_its_own(
    original: Callable[..., object], *args: object, **kwargs: object
) -> object:
    """SGLang shows itself `api_key` of its settings while it warms up; ours is gone afterwards."""
    from sglang.srt.runtime_context import get_serving  # noqa: PLC0415

    (gate,) = _gates
    with get_serving().override(api_key=gate.own()):
        try:
            return original(*args, **kwargs)
        finally:
            gate.no_more_own()


ADAPTER = Adapter(
    name="api_keys",
    switch="api_key_file",
    engines=("sglang",),
    trees=("sglang-0.5.23", "sglang-branch", "sglang-base"),
    hooks=(
        Hook(
            target="sglang.srt.server_args.ServerArgs.resolve_once",
            kind="after",
            call=_judge_resolved,
        ),
        Hook(target=f"{HTTP}._setup_and_run_http_server", kind="before", call=_gate),
        Hook(target=f"{HTTP}._wait_and_warmup", kind="around", call=_with_a_key_of_its_own),
    ),
    needs=(
        "sglang.srt.arg_groups.overrides.resolving_view",
        f"{HTTP}.app.build_middleware_stack",
        "sglang.srt.runtime_context.get_serving",
    ),
    check=_check,
)
