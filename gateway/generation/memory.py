"""What an endpoint remembers from one request to the next, where that is its own affair (sessions are chat's)."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.request import TextDelta
from gateway.generation.request import GenerationRequest
from gateway.generation.services import Services
from gateway.generation.usage import UsageTotal
from gateway.tenancy.records import Principal


class Memory(Protocol):
    """One request's."""

    async def recall(self, services: Services, caller: Principal) -> GenerationRequest:
        """The request as it is to be answered, with what was said before. Called once, before all else.

        Raises:
            APIError: it names what is not there. SessionStoreAway: nobody can tell.
        """
        ...

    async def keep(self, choices: Sequence[TextDelta], usage: UsageTotal) -> None:
        """The answer has ended well, and is billed: remember it, before the client has its last byte. Where that
        fails the answer is the client's all the same.

        `choices` are those of an answer that goes out whole; a streamed one's went through its wire.
        """
        ...

    def headers(self) -> Mapping[str, str]:
        """For the answer, with what is known when they are sent."""
        ...
