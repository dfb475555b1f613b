"""What a check has found."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from gateway.config.settings import Settings

DEADLINE_S = 3.0
"""What is asked over the network answers within so long, or is away."""


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Turnpike serves, with less, or not for long."""
    FAILURE = "failure"
    """Turnpike does not start, or does not do what the settings ask of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, and `remedy` says what to do where it is not `OK`. Neither holds a secret."""

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
