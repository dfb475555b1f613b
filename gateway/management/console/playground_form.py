"""The playground's form as the body of a chat completion."""

from typing import Any

import orjson

from gateway.http.errors import invalid
from gateway.management.console.forms import Form


def chat_body(form: Form) -> dict[str, Any]:
    """The request's body. Empty fields are left out: the model's own defaults apply.

    Raises:
        APIError: 400 naming the field.
    """
    question = form.get("question").strip()
    if not question:
        raise invalid("question", "Ask something.")
    system = form.get("system").strip()
    messages = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {"model": form.get("model"), "messages": [*messages, {"role": "user", "content": question}]}
    if tier := form.get("service_tier"):
        body["service_tier"] = tier
    for name, kind in (("temperature", float), ("top_p", float), ("max_tokens", int), ("seed", int)):
        if text := form.get(name).strip():
            body[name] = _number(name, text, kind)
    if text := form.get("json_schema").strip():
        schema = _json("json_schema", text, dict)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if text := form.get("tools").strip():
        body["tools"] = _json("tools", text, list)
    return body


def _number(name: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise invalid(name, f"{name} must be a number.") from None


def _json(name: str, text: str, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid(name, f"This is not JSON: {error}.") from None
    if not isinstance(value, kind):
        raise invalid(name, f"This must be a JSON {'object' if kind is dict else 'array'}.")
    return value
