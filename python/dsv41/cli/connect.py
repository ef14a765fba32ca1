"""`dsv41 connect`: what to paste into a client. Keys are named by their file, never shown."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dsv41.api import Endpoint
from dsv41.cli import crews
from dsv41.cli.service_parser import CLIENTS
from dsv41.errors import Error, UsageError
from dsv41.plan import LOCAL

if TYPE_CHECKING:
    from pathlib import Path

    from dsv41.cli.talk import Talk

MODEL = "deepseek-v4.1-flash"
TINY = "dsv41-fixture"  # what profile `local` serves
LOOK = 2.0  # seconds that a server has to name its model
_TEXTS = {
    "curl": """\
curl {url}/chat/completions{curl_key} \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
""",
    "openai": """\
from pathlib import Path
from openai import OpenAI

client = OpenAI(base_url="{url}", api_key={python_key})
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello"}}]
)
print(answer.choices[0].message.content)
""",
    "open-webui": """\
# environment of Open WebUI; after its first start these live in its own settings
OPENAI_API_BASE_URL={url}
OPENAI_API_KEY={shell_key}
ENABLE_OLLAMA_API=False
""",
    "litellm": """\
# config.yaml of LiteLLM; start it with DSV41_API_KEY={shell_key}
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: {url}
      api_key: os.environ/DSV41_API_KEY
""",
    "prometheus": """\
# prometheus.yml; SGLang serves /metrics when the profile's knob `metrics` is on
scrape_configs:
  - job_name: dsv41
    static_configs:
      - targets: ["{target}"]
""",
}


def connect(args: Namespace, talk: Talk) -> int:
    """Print ready text for one client or all of them."""
    url, keys, model = _endpoint(args, talk)
    first = f"$(head -n 1 {keys})"
    values = {
        "url": url,
        "model": model,
        "target": url.split("://", 1)[-1].removesuffix("/v1"),
        "curl_key": f' -H "Authorization: Bearer {first}"' if keys else "",
        "python_key": f'Path("{keys}").read_text().split()[0]' if keys else '"none"',
        "shell_key": f'"{first}"' if keys else "none",
    }
    chosen = [args.client] if args.client else list(CLIENTS)
    texts = {name: _TEXTS[name].format(**values) for name in chosen}
    if args.json:
        talk.document("connect", url=url, model=model, api_key_file=keys, clients=texts)
        return 0
    for name, text in texts.items():
        if len(texts) > 1:
            talk.put(f"## {name}")
        talk.put(text)
    if keys and args.fleet:
        talk.say(f"the keys are in {keys} on the head; give each client a copy, mode 0600")
    return 0


def _model(endpoint: Endpoint, talk: Talk) -> str:
    """The model that a server says it has; a fleet's where it does not say."""
    try:
        return str(endpoint.models()[0]["id"])
    except (Error, ValueError, LookupError, TypeError) as error:
        why = error.says if isinstance(error, Error) else "/v1/models is no list of models"
        talk.say(f"the model is taken to be {MODEL}: {why.rstrip('.')}")
        return MODEL


def _refuse_port(url: str) -> None:
    """UsageError D110 for a port that is none; the rest of a URL is judged where it is used."""
    try:
        urlsplit(url).port  # noqa: B018 - reading it is what refuses
    except ValueError as error:
        raise UsageError(
            "D110", f"{url!r} is not a URL: {error}.", fix="give --url http://HOST:PORT/v1"
        ) from error


def _key(path: Path | None) -> str | None:
    """A key to ask with; None where the file is not for this machine's user to read."""
    if path is None:
        return None
    from dsv41.local.http import keys  # noqa: PLC0415 - only there with the local engine

    try:
        return keys.read_keys(path).bearer()
    except UsageError:
        return None


def _endpoint(args: Namespace, talk: Talk) -> tuple[str, str | None, str]:
    """URL, key file and model: of --url, or of the Plan that the head of --fleet has."""
    if (args.url is None) == (args.fleet is None):
        raise UsageError(
            "D107",
            "connect takes --url U or --fleet F, one of the two.",
            fix="dsv41 connect --fleet fleet.toml",
        )
    if args.url is not None:
        _refuse_port(args.url)
        endpoint = Endpoint(url=args.url, key=_key(args.api_key_file), timeout=LOOK)
        keys = args.api_key_file and str(args.api_key_file)
        return f"{endpoint.root}/v1", keys, _model(endpoint, talk)
    with crews.crew_of(args.fleet) as crew:
        plan = crews.plan_of(crew)
    words = iter(plan.ranks[0].argv)
    named = (next(words, MODEL) for word in words if word == "--served-model-name")
    return plan.url, plan.api_key_file, next(named, TINY if plan.engine == LOCAL else MODEL)
