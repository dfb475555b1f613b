"""GET /v1/models and /v1/models/{id}: the models that the key may use, aliases and versions of them, and the tenant's
adapters, with their base model as `parent`."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.adapters.book import AdapterBook
from gateway.adapters.names import qualified_name
from gateway.adapters.records import Adapter
from gateway.generation.engine_client import EngineClient, ServedModel
from gateway.generation.lookup import model_not_found
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.refusals.refusal import MAX_MODEL_CHARS
from gateway.routing.names import ModelNames, Pair
from gateway.routing.router import may_use_adapter
from gateway.tenancy.records import Principal


class ModelCards:
    """Builds the model objects that clients see."""

    def __init__(self, engine: EngineClient, names: ModelNames, adapters: AdapterBook) -> None:
        self._engine = engine
        self._names = names
        self._adapters = adapters

    def all(self, caller: Principal) -> list[dict[str, Any]]:
        adapters = [adapter.name for adapter in self._adapters.of_tenant(caller.tenant_id)]
        names = dict.fromkeys((*self._names.all_names(caller.policies.routing.aliases), *adapters))
        cards = [self.card(name, caller) for name in names]
        return [card for card in cards if card is not None]

    def card(self, name: str, caller: Principal) -> dict[str, Any] | None:
        """None: the name is unknown, or the key may not use its model."""
        aliases = caller.policies.routing.aliases
        target = self._names.find(name, aliases, lambda each: self._adapters.find(each, caller))
        if isinstance(target, Adapter):
            if not may_use_adapter(caller, name, target):
                return None
            card = _wire(name, [self._engine.models[target.model]])
            root = qualified_name(target.name, caller.tenant_name)
            return card | {"owned_by": caller.tenant_name, "root": root, "parent": target.model}
        names = (target.large, target.small) if isinstance(target, Pair) else (target,)
        may_use_all = caller.may_use(name)
        usable = next((each for each in names if each is not None and (may_use_all or caller.may_use(each))), None)
        if usable is None:
            return None
        return _wire(name, [self._engine.models[each] for each in self._names.models_of(usable)])


class ListModels:
    """An ASGI endpoint."""

    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cards = self._cards.all(request_state(scope).caller())
        await send_body(send, 200, orjson.dumps({"object": "list", "data": cards}))


class RetrieveModel:
    """An ASGI endpoint. A model's name may contain slashes."""

    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, name = request_state(scope), scope["path_params"]["id"]
        state.model = name[:MAX_MODEL_CHARS]
        card = self._cards.card(name, state.caller())
        if card is None:
            raise model_not_found(name)
        await send_body(send, 200, orjson.dumps(card))


def _wire(name: str, models: Sequence[ServedModel]) -> dict[str, Any]:
    """The model object. The context window is the smallest of `models`, under vLLM's name `max_model_len` and under
    `context_window`, which other clients read. `default_parameters`, OpenRouter's name: the sampling parameters of a
    request that does not state them."""
    window = min(model.max_model_len for model in models)
    return {
        "id": name,
        "object": "model",
        "created": max(model.created for model in models),
        "owned_by": "turnpike",
        "max_model_len": window,
        "context_window": window,
        "default_parameters": _common([model.sampling_defaults.effective for model in models]),
    }


def _common(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters on which all models of a name agree; null for the others."""
    first, *others = values
    return {name: value if all(each[name] == value for each in others) else None for name, value in first.items()}
