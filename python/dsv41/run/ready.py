"""Is the endpoint of a Plan ready? It listens, says so, and has answered a question."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

from dsv41 import questions
from dsv41.api import Endpoint
from dsv41.engines.asking import ASKING
from dsv41.errors import EngineFailed, Error
from dsv41.plan import Plan
from dsv41.run import service_name

ANSWER = 64  # tokens, enough for a number


def why_not(plan: Plan) -> str:
    """Why the endpoint does not serve this Plan yet; empty when it says that it does."""
    asking = ASKING[plan.engine]
    at = urlsplit(plan.url)
    try:
        with socket.create_connection((at.hostname or "", at.port or 80), timeout=2):
            pass
    except OSError as error:
        return f"{at.netloc} does not listen: {error.strerror or error}"
    try:
        said = Endpoint(url=plan.url, timeout=15).text(asking.ready)
        name = json.loads(said).get("service") if asking.names_service else service_name(plan)
    except Error as error:
        return f"{asking.ready}: {error.says}"
    except (ValueError, AttributeError):
        name = None
    if name == service_name(plan):
        return ""
    return f"{plan.url} answers for another service: expected {service_name(plan)}, found {name}"


def first_answer(plan: Plan, *, key: str | None, seconds: float) -> str:
    """The answer to 19 + 23; EngineFailed D432 when nothing was generated."""
    endpoint = Endpoint(url=plan.url, key=key, timeout=seconds)
    model = str(endpoint.models()[0]["id"])
    body = {"model": model, "temperature": 0, "max_tokens": ANSWER, **questions.ARITHMETIC.request}
    answer = endpoint.chat(**body)
    try:
        content = str(answer["choices"][0]["message"]["content"] or "").strip()
    except (KeyError, IndexError, TypeError):
        content = ""
    if not content:
        raise EngineFailed(
            "D432",
            f"{plan.url} is ready but generated nothing for the first question.",
            fix="read the logs: dsv41 logs --fleet FLEET",
        )
    return content
