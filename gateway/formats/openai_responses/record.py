"""A stored response: the object, its input items, and the items before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.formats.openai_responses.ids import INPUT, is_response_id, item_id
from gateway.formats.openai_responses.items import Item
from gateway.http.errors import SERVER_ERROR, APIError
from gateway.sessions import UnreadableHistory
from gateway.sessions.records import Records

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
_MEMBERS = {"response", "before", "input"}


@dataclass(frozen=True, slots=True)
class Record:
    """`before`: items of the previous responses. `input`: this response's input items, with ids."""

    response: dict[str, Any]
    before: Sequence[Item]
    input: Sequence[Item]

    @classmethod
    def of(cls, response: dict[str, Any], before: Sequence[Item], given: Sequence[Item]) -> "Record":
        """A record of `given` input items. Items without an id get one."""
        numbered = enumerate(given)
        return cls(
            response,
            before,
            [{"id": item_id(response["id"], _PREFIXES[item["type"]], INPUT, i), **item} for i, item in numbered],
        )

    @property
    def items(self) -> list[Item]:
        """All items up to the end of this response."""
        return [*self.before, *self.input, *self.response["output"]]

    def to_json(self) -> bytes:
        return orjson.dumps({"response": self.response, "before": self.before, "input": self.input})

    @classmethod
    def from_json(cls, data: bytes) -> "Record":
        """Raises: UnreadableHistory."""
        try:
            stated = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise UnreadableHistory("it is not JSON") from None
        if not isinstance(stated, dict) or stated.keys() != _MEMBERS:
            raise UnreadableHistory("it is not a stored response")
        return cls(**stated)


async def read_record(records: Records, tenant_id: str, id: str) -> Record | None:
    """
    Raises:
        SessionStoreAway: the store is unavailable.
        APIError: 500, the stored record has an unknown format.
    """
    if not is_response_id(id):
        return None
    try:
        data = await records.get(tenant_id, id)
        return None if data is None else Record.from_json(data)
    except UnreadableHistory as error:
        raise _unreadable() from error


def _unreadable() -> APIError:
    message = "The stored response cannot be read. Delete it."
    return APIError(500, message, type=SERVER_ERROR, code="response_unreadable")
