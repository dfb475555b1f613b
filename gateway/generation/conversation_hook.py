"""Storage of answers by an endpoint itself, as the responses API has it. (Sessions are chat's.)"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.generation.request import GenerationRequest
from gateway.generation.services import Services
from gateway.generation.usage import UsageTotal
from gateway.speech.output_parser import ParsedDelta
from gateway.tenancy.records import Principal


class ConversationHook(Protocol):
    """Of one request."""

    async def recall(self, services: Services, caller: Principal) -> GenerationRequest:
        """The request as it is to be answered, with the conversation that it continues. Called once,
        first of all.

        Raises:
            APIError: it names what is not there. SessionStoreAway: the store cannot be read.
        """
        ...

    async def keep(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> None:
        """The answer has ended well and is billed: store it, before the client has its last byte. A failure is logged,
        and the client gets its answer.

        `choices` are those of an answer that is sent as a whole; a streamed one has passed through its formatter.
        """
        ...

    def headers(self) -> Mapping[str, str]:
        """Response headers, with what is known when they are sent."""
        ...
