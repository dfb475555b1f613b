"""`Batch`, its states and the edges between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from gateway.files.records import random_text

COMPLETION_WINDOW = "24h"
WINDOW = timedelta(hours=24)
OUTPUT_LIFE_S = 30 * 86_400
"""How long output and error files are kept, unless the client states another time."""
_EVENTS = uuid5(NAMESPACE_URL, "turnpike:batches:events")


class Status(StrEnum):
    """OpenAI's states of a batch."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


EDGES: Mapping[Status, frozenset[Status]] = MappingProxyType(
    {
        Status.VALIDATING: frozenset({Status.FAILED, Status.IN_PROGRESS, Status.CANCELLING}),
        Status.IN_PROGRESS: frozenset({Status.FINALIZING, Status.CANCELLING}),
        Status.FINALIZING: frozenset({Status.COMPLETED, Status.EXPIRED}),
        Status.CANCELLING: frozenset({Status.CANCELLED}),
        **dict.fromkeys((Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED), frozenset[Status]()),
    }
)
OPEN = frozenset(status for status, following in EDGES.items() if following)
"""States of batches that have not ended."""


@dataclass(frozen=True, slots=True)
class LineError:
    """An error of an input file. `line`: from 1 on; None: of the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines of a batch: all, those with an answer, and those with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class BatchUsage:
    """Tokens of the answered lines. `cached_tokens` are part of the input, `reasoning_tokens` of the output."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "BatchUsage") -> "BatchUsage":
        return BatchUsage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


NO_COUNTS = Counts()
NO_USAGE = BatchUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of a tenant. `key_id`: public id of the key that created it, with whose rights and limits its lines run.
    `model`: that its lines name, once they are checked. `output_life_s`: seconds from the creation of the output and
    error files to their deletion. `times`: when it entered each state that it has been in."""

    id: str
    tenant_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    status: Status
    created_at: datetime
    expires_at: datetime
    completion_window: str = COMPLETION_WINDOW
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: Sequence[LineError] = ()
    metadata: Mapping[str, str] | None = None
    output_life_s: int = OUTPUT_LIFE_S
    counts: Counts = NO_COUNTS
    usage: BatchUsage = NO_USAGE
    times: Mapping[Status, datetime] = field(default_factory=lambda: MappingProxyType({}))

    def file_id(self, kind: str) -> str:
        """The id of its `output` or `error` file: the same in every attempt to finish the batch."""
        return f"file-{sha256(f'{self.id}:{kind}'.encode()).hexdigest()[:24]}"

    def event_id(self, line: int) -> UUID:
        """The id of a line's usage event."""
        return uuid5(_EVENTS, f"{self.id}:{line}")

    def request_id(self, line: int) -> str:
        """The id of a line's output."""
        return f"batch_req_{self.event_id(line).hex}"


def new_batch_id() -> str:
    return "batch_" + random_text(24)


def as_json(errors: Sequence[LineError]) -> list[dict[str, Any]]:
    """The errors as the API and the database have them."""
    return [{"code": each.code, "line": each.line, "message": each.message, "param": each.param} for each in errors]
