"""POST /v1/embeddings: the way of every request, with a vector for each input at its end instead of text."""

from collections.abc import AsyncGenerator, Mapping

from starlette.types import Receive, Scope, Send

from engine.request import Pooling, TextDelta, Usage
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener
from gateway.formats.openai.embedding_schema import EmbeddingRequest, Encoding, parse_embeddings
from gateway.formats.openai.embedding_wire import body, item
from gateway.generation.admit import Admission
from gateway.generation.deltas import reading
from gateway.generation.lookup import find_model, model_not_found
from gateway.generation.measurement import measuring
from gateway.generation.placing import Asking
from gateway.generation.route_stage import route_headers
from gateway.generation.service_classes import echoed
from gateway.generation.stages import Stages
from gateway.generation.wire import new_id
from gateway.http.access import require_model
from gateway.http.errors import invalid, shutting_down
from gateway.http.exchange import exchange_of
from gateway.http.json_body import read_json
from gateway.http.rate_headers import rate_headers
from gateway.http.responses import send_body
from gateway.http.undisturbed import undisturbed
from gateway.routing.reason import RouteReason
from gateway.routing.router import Route
from gateway.tenancy.records import Principal

OPERATION = "embeddings"
"""OpenTelemetry's `gen_ai.operation.name`."""

INPUTS_AT_A_TIME = 64
"""So many inputs of one request are in the engine at most."""


class EmbeddingsEndpoint:
    """An ASGI endpoint."""

    def __init__(self, stages: Stages) -> None:
        self._services = stages.services
        self._max_json_depth = stages.settings.max_json_depth
        self._poolings = {name: Pooling(pooling) for name, pooling in stages.settings.embeddings.items()}
        self._names = stages.names
        self._classes = stages.classes
        self._sessions = stages.sessions
        self._placing = stages.placing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = exchange_of(scope).caller()
        asked = parse_embeddings(await read_json(scope, receive, self._max_json_depth))
        if self._services.drain.begun:
            raise shutting_down()
        request = asked.pooled(self._pooling(asked, caller))
        async with self._sessions.joined(request, scope, caller):  # refuses one: there is nothing to go on with
            serving = self._classes.serving(caller.tier, request.service_tier)
            route = Route(asked.model, asked.model, asked.model, RouteReason.EXPLICIT, asked.model)
            with measuring(self._services.metrics, (OPERATION, asked.model, serving.name)) as measurement:
                asking = Asking(new_id("embd-"), request, None, caller, serving, measurement, receive, INPUTS_AT_A_TIME)
                async with self._placing.admitted(route, asking) as (place, admission):
                    items = await self._items(asking, asked.encoding, admission, place.reservation)
                    measurement.used(admission.usage)
                    headers = rate_headers(admission.hold.states) | route_headers(route)
                    tier = echoed(serving, request.service_tier)
                    answer = body(items, asking.id, asked.model, tier, admission.usage)
                    await undisturbed(_bill_and_send(admission, answer, headers, send))

    def _pooling(self, asked: EmbeddingRequest, caller: Principal) -> Pooling:
        """How the model that is named pools. It has to be a model's own name, as vectors of different models cannot be
        compared: nothing is chosen here that may be chosen in another way the next time.

        Raises:
            APIError: 400, 403, 404 or, while nothing can be served, 503.
        """
        require_model(caller, asked.model)
        pooling = self._poolings.get(asked.model)
        if pooling is None:
            if self._names.find(asked.model, caller.routing.aliases) is None:
                raise model_not_found(asked.model)
            raise invalid("model", f"The model `{asked.model}` makes no embeddings here.", "unsupported_model")
        asked.require_vocabulary(find_model(self._services.engine, asked.model, caller).vocab_size)
        return pooling

    async def _items(
        self, asking: Asking, encoding: Encoding, admission: Admission, reservation: Reservation
    ) -> list[bytes]:
        """The items of all inputs, in their order. The engine is given some inputs at a time, and each item is written
        as its vector comes: many inputs would hold up everybody's streams, at both ends. Reserved are the first.

        Raises:
            ClientGone: the client hung up.
            EngineError: the model failed on one of them.
        """
        count, items = len(admission.prompts), list[bytes]()
        submitted = 0
        try:
            while submitted < count:
                first, submitted = submitted, min(submitted + INPUTS_AT_A_TIME, count)
                items += await self._some(asking, encoding, admission, reservation, range(first, submitted))
        except BaseException:
            for position in range(submitted, count):
                admission.aborted(position, Usage(len(admission.prompts[position].token_ids), 0))
            raise
        return items

    async def _some(
        self,
        asking: Asking,
        encoding: Encoding,
        admission: Admission,
        reservation: Reservation,
        positions: range,
    ) -> list[bytes]:
        items = dict.fromkeys(positions, b"")
        streams = [self._stream(asking, admission, reservation, position) for position in positions]
        admission.started()
        async with reading(streams, 1, asking.receive) as deltas:
            while batch := await deltas.next_batch():
                for place, delta in batch:
                    position = positions[place]
                    admission.usage.saw(position, delta)
                    items[position] = item(position, delta.embedding, encoding)
        if not all(items.values()):
            raise RuntimeError("the engine ended without an embedding for each input")
        return list(items.values())

    def _stream(
        self, asking: Asking, admission: Admission, reservation: Reservation, position: int
    ) -> AsyncGenerator[TextDelta]:
        prompt = admission.prompts[position]
        return self._services.engine.stream(
            asking.request.model,
            prompt.token_ids,
            prompt.params,
            request_id=f"{asking.id}-{position}",
            tenant=asking.caller.tenant_id,
            service_class=asking.serving.engine_class,
            on_abort=_listener(admission, position),
            reservation=reservation,
        )


async def _bill_and_send(admission: Admission, answer: bytes, headers: Mapping[str, str], send: Send) -> None:
    await admission.complete()
    await send_body(send, 200, answer, headers)


def _listener(admission: Admission, position: int) -> AbortListener:
    return lambda _, usage: admission.aborted(position, usage)
