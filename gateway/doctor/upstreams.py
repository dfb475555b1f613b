"""Checks the servers that run models of the settings: key, tokenizer, and whether they answer."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx2

from gateway.config.settings import Settings
from gateway.config.upstreams import StatedUpstream
from gateway.doctor.finding import DEADLINE_S, Finding, failure, ok, warning
from gateway.errors import OperatorError
from gateway.upstreams.text import upstream_text


def upstreams(settings: Settings) -> Iterator[Finding]:
    """A finding for each upstream."""
    for name, stated in settings.upstreams.items():
        yield _examined(name, stated)


def _examined(name: str, stated: StatedUpstream) -> Finding:
    what, remedy = f"upstream {name}", f"correct [upstreams.{name}] in turnpike.toml"
    try:
        secret = stated.secret()
        upstream_text(name, stated.tokenizer)
    except OperatorError as error:
        return failure(what, str(error), remedy)
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    try:
        response = httpx2.get(f"{stated.url}/models", headers=headers, timeout=DEADLINE_S)
    except (httpx2.HTTPError, OSError) as error:
        away = "start it; until then requests of this model get 502 or 503, and other models are served"
        return warning(what, f"{stated.url} does not answer ({type(error).__name__})", away)
    if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return failure(what, f"{stated.url} refuses the API key", remedy)
    if response.status_code != HTTPStatus.OK:
        return warning(what, f"{stated.url}/models answers {response.status_code}", "check that it has OpenAI's API")
    remote, names = stated.model or name, _names(response)
    if names and remote not in names:
        return failure(what, f"{stated.url} has no model {remote}, but {', '.join(names[:5])}", remedy)
    counted = "counted" if stated.tokenizer is not None else "as the server reports them"
    return ok(what, f"{remote} at {stated.url}; tokens: {counted}")


def _names(response: httpx2.Response) -> list[str]:
    try:
        body: Any = response.json()
        return [str(card["id"]) for card in body["data"]]
    except (KeyError, TypeError, ValueError):
        return []
