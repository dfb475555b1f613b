"""Loads the responses that a request continues from, and stores its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gateway.formats.openai_responses.conversation import conversation_of, unshown_chars
from gateway.formats.openai_responses.formatter import ResponsesFormatter
from gateway.formats.openai_responses.ids import response_of
from gateway.formats.openai_responses.items import REFERENCE, Item
from gateway.formats.openai_responses.record import Record, read_record
from gateway.formats.openai_responses.schema import Stated
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseMeta
from gateway.generation.services import Services
from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError, invalid
from gateway.http.fields import empty_array
from gateway.sessions.records import Records
from gateway.speech.output_parser import ParsedDelta
from gateway.tenancy.records import Principal

KEPT_HEADER = "x-turnpike-response-kept"
MAX_REFERRED = 16
"""Number of responses whose items one request may refer to. Each is one read of the store."""
MAX_UNSHOWN_CHARS = 128 * 1024
"""Bound on characters that are stored with a response and are not part of its prompt, as they are not billed."""


class ResponseTurn:
    """A `ConversationHook`, called before routing, when the formatter is made, and after the answer."""

    def __init__(self, request: GenerationRequest, stated: Stated) -> None:
        self._request = request
        self._stated = stated
        self._before: Sequence[Item] = ()
        self._input: Sequence[Item] = ()
        self._records: Records | None = None
        self._tenant_id = ""
        self._formatter: ResponsesFormatter | None = None
        self._kept: bool | None = None

    async def recall(self, services: Services, caller: Principal) -> GenerationRequest:
        """
        Raises:
            APIError: 404, the tenant has no such previous response or item; 400, the input is empty.
            SessionStoreAway: the store is unavailable.
        """
        self._records, self._tenant_id = services.sessions.responses, caller.tenant_id
        previous = self._stated.previous_response_id
        if previous is not None:
            self._before = (await self._read(previous, "previous_response_id")).items
        self._input = await self._resolved(self._stated.items)
        if self._stated.store:
            self._require_shown()
        messages = conversation_of(self._stated.instructions, [*self._before, *self._input])
        if not messages:
            raise empty_array("input")
        return replace(self._request, prompts=(self._stated.conversation(messages),))

    def _require_shown(self) -> None:
        unshown = unshown_chars(self._input) + self._stated.unshown_tool_chars
        if unshown > MAX_UNSHOWN_CHARS:
            raise invalid(
                "input",
                f"'input' and 'tools' have {unshown} characters that are not part of the prompt. The maximum is "
                f"{MAX_UNSHOWN_CHARS} for a stored response. Remove reasoning summaries, reasoning without a message "
                "and tools that 'tool_choice' excludes, or set 'store' to false.",
                "string_above_max_length",
            )

    def formatter(
        self, meta: ResponseMeta, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
    ) -> ResponsesFormatter:
        """The formatter of the answer. `keep` reads the response from it."""
        [prompt] = prompts
        self._formatter = ResponsesFormatter(meta, self._stated, model.text.tokenizer, prompt.params)
        return self._formatter

    async def keep(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> None:
        formatter = self._formatter
        assert formatter is not None
        assert self._records is not None
        formatter.add(choices)
        if self._stated.store:
            record = Record.of(formatter.response(usage), self._before, self._input)
            self._kept = await self._records.put(self._tenant_id, formatter.id, record.to_json())
            formatter.kept = self._kept

    def headers(self) -> Mapping[str, str]:
        return {} if self._kept is None else {KEPT_HEADER: "true" if self._kept else "false"}

    async def _resolved(self, items: Sequence[Item]) -> list[Item]:
        """The items, with each reference replaced by its item."""
        known: dict[str, Record] = {}
        resolved = []
        for i, item in enumerate(items):
            if item["type"] != REFERENCE:
                resolved.append(item)
                continue
            param, id = f"input[{i}].id", item["id"]
            response_id = response_of(id)
            if response_id is None:
                raise _no_item(id, param)
            if response_id not in known:
                if len(known) == MAX_REFERRED:
                    raise invalid(
                        param, f"Too many references: a request refers to items of at most {MAX_REFERRED} responses."
                    )
                known[response_id] = await self._read(response_id, param)
            own = known[response_id]
            found = [each for each in (*own.input, *own.response["output"]) if each["id"] == id]
            if not found:
                raise _no_item(id, param)
            resolved.append(found[0])
        return resolved

    async def _read(self, id: str, param: str) -> Record:
        assert self._records is not None
        record = await read_record(self._records, self._tenant_id, id)
        if record is None:
            code = "previous_response_not_found" if param == "previous_response_id" else "item_not_found"
            raise APIError(404, f"Response with id '{id[:64]}' not found.", param=param, code=code)
        return record


def _no_item(id: str, param: str) -> APIError:
    return APIError(404, f"Item with id '{id[:64]}' not found.", param=param, code="item_not_found")
