"""The result of a check."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gateway.config.settings import Settings

DEADLINE_S = 3.0
"""Timeout of a server's answer."""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Turnpike serves, but with less performance or only for a limited time."""
    FAILURE = "failure"
    """Turnpike does not start, or does not work as configured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`what`: subject of the check. `remedy`: what to do unless the state is `OK`. Neither contains a secret."""

    what: str
    state: State
    detail: str
    remedy: str = ""


Check = Callable[[Settings], Iterable[Finding]]


def ok(what: str, detail: str) -> Finding:
    return Finding(what, State.OK, detail)


def warning(what: str, detail: str, remedy: str) -> Finding:
    return Finding(what, State.WARNING, detail, remedy)


def failure(what: str, detail: str, remedy: str) -> Finding:
    return Finding(what, State.FAILURE, detail, remedy)
