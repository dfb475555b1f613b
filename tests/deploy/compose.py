"""docker-compose.yml as Compose reads it: anchors merged, variables filled in."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"

_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<how>[?-])(?P<rest>[^}]*))?\})")


class MissingVariable(Exception):
    """A `${NAME:?message}` has no value."""


def compose_text() -> str:
    return COMPOSE_FILE.read_text(encoding="utf-8")


def required_variables() -> set[str]:
    """Every variable without which the file does not start anything."""
    return {match["name"] for match in _VARIABLE.finditer(compose_text()) if match["how"] == "?"}


def load_compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """
    Raises:
        MissingVariable: one that the file asks for is not among `variables`, or empty.
    """
    loaded: dict[str, Any] = _filled(yaml.safe_load(compose_text()), variables)
    return loaded


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    return _VARIABLE.sub(lambda match: _value(match, variables), node) if isinstance(node, str) else node


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["escaped"]:
        return "$"
    value = variables.get(match["name"], "")
    if not value and match["how"] == "?":
        raise MissingVariable(f"{match['name']}: {match['rest']}")
    return value or (match["rest"] or "" if match["how"] == "-" else "")
