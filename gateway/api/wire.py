"""What the two generating endpoints have in common on the wire."""

import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, Protocol

import orjson

from engine.request import TextDelta
from gateway.api.usage import UsageTotal


@dataclass(frozen=True, slots=True)
class Header:
    """The members that every chunk and the whole body of one answer begin with. `service_tier`: where asked for."""

    id: str
    model: str
    service_tier: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    def wire(self, kind: str) -> dict[str, Any]:
        members = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": system_fingerprint(self.model),
        }
        return members if self.service_tier is None else members | {"service_tier": self.service_tier}

    def chunk_start(self, kind: str) -> bytes:
        """A chunk's JSON up to where its first choice begins."""
        return orjson.dumps(self.wire(kind))[:-1] + b',"choices":['


class Wire(Protocol):
    """How an endpoint spells choices. An object serves one request and keeps what it said of each choice."""

    def chunks(self, choice: int, delta: TextDelta) -> Sequence[bytes]:
        """The chunks, as JSON, that a delta becomes; none where there is nothing to see."""
        ...

    def usage_chunk(self, usage: UsageTotal) -> bytes:
        """The chunk without choices that ends a stream whose client asked for usage."""
        ...

    def body(self, choices: Sequence[TextDelta], usage: UsageTotal) -> bytes:
        """The whole answer, from each choice's deltas joined into one."""
        ...


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


@cache
def system_fingerprint(model: str) -> str:
    """Changes with what may change the text that a seed gives: the program's version and the (served) model."""
    return "fp_" + hashlib.sha256(f"{version('turnpike')}:{model}".encode()).hexdigest()[:12]


def chunk_end(include_usage: bool) -> bytes:
    """With usage asked for, every chunk but the last says that it has none."""
    return b'],"usage":null}' if include_usage else b"]}"
