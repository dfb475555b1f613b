"""POST and GET /v1/batches, GET /v1/batches/{id}, and POST /v1/batches/{id}/cancel: a tenant's batches. A batch of
another tenant is not found."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import orjson
from starlette.types import Receive, Scope, Send

from gateway.batches.batches import Batches
from gateway.batches.errors import BatchConflict, TooManyBatches, UnknownBatch
from gateway.batches.records import WINDOW, Batch, Status, new_batch_id
from gateway.files.records import Purpose
from gateway.files.store import FileStore
from gateway.formats.openai.batch_schema import batch_object, parse_batch
from gateway.formats.openai.file_format import answering_files, list_object
from gateway.http.access import Endpoint, require_scope
from gateway.http.errors import RATE_LIMIT, APIError, invalid
from gateway.http.json_body import read_json
from gateway.http.query import page_size, read_query
from gateway.http.request_state import request_state
from gateway.http.responses import send_body

MAX_PAGE = 100
DEFAULT_PAGE = 20


class ManyBatches:
    """An ASGI endpoint: creates, and lists. `endpoints`: of lines, by path; a key needs the scope of the one that its
    batch names."""

    def __init__(
        self, batches: Batches, files: FileStore, endpoints: Mapping[str, Endpoint], max_json_depth: int
    ) -> None:
        self._batches = batches
        self._files = files
        self._endpoints = endpoints
        self._max_json_depth = max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            answer = batch_object(await self._create(scope, receive))
        else:
            query = read_query(scope, {"after": str, "limit": page_size(MAX_PAGE)})
            with _answering("after", 400):
                page, has_more = await self._batches.store.page(
                    tenant_id=request_state(scope).caller().tenant_id,
                    limit=query.get("limit", DEFAULT_PAGE),
                    after=query.get("after"),
                )
            answer = list_object([batch_object(each) for each in page], has_more)
        await send_body(send, 200, orjson.dumps(answer))

    async def _create(self, scope: Scope, receive: Receive) -> Batch:
        caller = request_state(scope).caller()
        request = parse_batch(await read_json(scope, receive, self._max_json_depth))
        require_scope(caller, self._endpoints[request.endpoint].scopes)
        now = datetime.now(UTC)
        with answering_files("input_file_id", 400):
            file = await self._files.find(caller.tenant_id, request.input_file_id, now)
        if file.purpose is not Purpose.BATCH:
            message = f"Invalid 'input_file_id': the file has the purpose '{file.purpose}', and must have 'batch'."
            raise invalid("input_file_id", message)
        batch = Batch(
            id=new_batch_id(),
            tenant_id=caller.tenant_id,
            key_id=caller.key_id,
            endpoint=request.endpoint,
            input_file_id=file.id,
            status=Status.VALIDATING,
            created_at=now,
            expires_at=now + WINDOW,
            metadata=request.metadata,
            output_life_s=request.output_life_s,
        )
        with _answering():
            await self._batches.store.create(batch, self._batches.settings.tenant_batches)
        self._batches.created.set()
        return batch


class OneBatch:
    """An ASGI endpoint: reads a batch or, with `cancels`, begins to cancel it."""

    def __init__(self, batches: Batches, *, cancels: bool = False) -> None:
        self._batches = batches
        self._cancels = cancels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read_query(scope, {})
        batch_id, tenant_id = scope["path_params"]["id"], request_state(scope).caller().tenant_id
        with _answering():
            if self._cancels:
                batch = await self._batches.store.cancel(batch_id, tenant_id, datetime.now(UTC))
                self._batches.created.set()
            else:
                batch = await self._batches.store.find(batch_id, tenant_id)
        await send_body(send, 200, orjson.dumps(batch_object(batch)))


@contextmanager
def _answering(param: str = "id", status: int = 404) -> Iterator[None]:
    """Turn the errors of batches into API errors. `param`, `status`: of a batch that does not exist."""
    try:
        yield
    except UnknownBatch as error:
        raise APIError(status, f"No such Batch object: {error}.", param=param, code="not_found") from None
    except BatchConflict as error:
        raise APIError(400, str(error), param="id", code="invalid_status") from None
    except TooManyBatches as error:
        raise APIError(429, str(error), type=RATE_LIMIT, code="batch_limit_exceeded") from None
