"""The common parts of the response formats of the generating endpoints."""

import hashlib
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, Protocol

import orjson

from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta


@dataclass(frozen=True, slots=True)
class ResponseMeta:
    """The first members of every chunk and of the whole body of one answer. `service_tier`: None if not asked for."""

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


class ResponseFormatter(Protocol):
    """Formats the answer of one request as its endpoint's API has it.

    What it returns for a stream is whole server-sent events; empty where a delta has nothing to show.
    """

    def start(self) -> bytes:
        """The events of a stream before the first delta."""
        ...

    def events(self, output: ParsedDelta) -> bytes:
        """The events of one delta."""
        ...

    def end(self, usage: UsageTotal) -> bytes:
        """The events of a stream when every choice has ended and is billed."""
        ...

    def failure(self, error: APIError) -> bytes:
        """The last event of a stream that failed."""
        ...

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        """The whole answer, from all choices in their order."""
        ...


def event(data: bytes) -> bytes:
    """A server-sent event without a name."""
    return b"data: %b\n\n" % data


DONE = event(b"[DONE]")
"""OpenAI's last event of a successful stream."""


def new_id(prefix: str) -> str:
    """A random id. `prefix` includes its separator, in which APIs differ."""
    return prefix + uuid.uuid4().hex


@cache
def system_fingerprint(model: str) -> str:
    """A digest of what may change the text of a seed: the program's version and the served model."""
    return "fp_" + hashlib.sha256(f"{version('turnpike')}:{model}".encode()).hexdigest()[:12]


def chunk_end(include_usage: bool) -> bytes:
    """The end of a chunk. With `include_usage`, all chunks but the last have a `usage` of null."""
    return b'],"usage":null}' if include_usage else b"]}"


def chunk_end_with(members: Mapping[str, Any]) -> bytes:
    """The end of a chunk with members after its choices."""
    return b"]," + orjson.dumps(members)[1:]
