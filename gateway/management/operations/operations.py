"""Performs the operations that routes declare, for the HTTP API, the console and the command line.

Permission, validation, transaction, audit entry and idempotency are therefore the same for all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson

from gateway.errors import OperatorError
from gateway.http.errors import APIError
from gateway.management.operations.change import Changes
from gateway.management.operations.errors import as_admin_error, not_found
from gateway.management.operations.idempotency import KeptAnswer, Repetition, keep, kept_answer, repetition_of
from gateway.management.operations.roles import Administrator
from gateway.management.operations.routes import PATH_KINDS, PREFIX, Octets, OperationInput, Route
from gateway.management.operations.schema import ListOf, Member, Record, without_secrets

_NOTHING: Record[dict[str, Any]] = Record("Nothing", dict)
_EMPTY: Mapping[str, Any] = MappingProxyType({})


def require_role(route: Route, administrator: Administrator) -> None:
    """
    Raises:
        APIError: 403, a key of that role may not do this.
    """
    if administrator.role not in route.allowed:
        raise APIError(
            403,
            f"The role {administrator.role} does not allow this. Allowed: {', '.join(sorted(route.allowed))}.",
            code="role_not_allowed",
        )


def read_path(given: Mapping[str, str]) -> Mapping[str, str]:
    """
    Raises:
        APIError: 404, what stands in the path cannot name anything.
    """
    try:
        return {name: PATH_KINDS[name].read(value, name) for name, value in given.items()}
    except APIError:
        raise not_found() from None


def read_texts(members: Mapping[str, Member], texts: Mapping[str, str]) -> Mapping[str, Any]:
    """The parameters of a query, None for those that are absent.

    Raises:
        APIError: 400 naming the parameter: unknown, missing or of another kind.
    """
    values = {name: members[name].kind.from_text(text) if name in members else text for name, text in texts.items()}
    return Record("Query", dict, members).read(values, "")


def read_body(route: Route, members: Mapping[str, Any]) -> Any:
    """Validate a JSON object's members by the route's record.

    Raises:
        APIError: 400 naming the member at fault.
    """
    return (route.body or _NOTHING).read(members, "")


def require_size(octets: Octets, content: bytes) -> None:
    """
    Raises:
        APIError: 413, the body is too large.
    """
    if len(content) > octets.max_bytes:
        message = f"Request body too large. The maximum is {octets.max_bytes} bytes."
        raise APIError(413, message, code="request_too_large")


@contextmanager
def typed_errors() -> Iterator[None]:
    """Errors of tenancy, billing and the stores become the answers that they are.

    Raises:
        APIError: in their place.
    """
    try:
        yield
    except OperatorError as error:
        raise as_admin_error(error) or error from error


async def make_change(
    changes: Changes, route: Route, call: OperationInput, request_id: str, repetition: Repetition | None
) -> Any | KeptAnswer:
    """Do a write: its effect, its audit entry and what is kept for a repetition, or none of them. A repetition gets
    what was kept and does nothing."""
    assert route.write is not None, route.name
    if route.prepare is not None:
        call = replace(call, prepared=await route.prepare(call))
    async with changes.change(call.administrator.key_id, request_id) as change:
        kept = None if repetition is None else await kept_answer(change, repetition)
        if kept is not None:
            return kept
        value = await route.write(change, call)
        if repetition is not None:
            await keep(change, repetition, route.status, without_secrets(route.json_answer, value))
    return value


class Operations:
    """All routes by their name, for callers inside this process. Every method raises `APIError` as the HTTP face
    answers: 403 for the role, 404, 400 naming the field, 409, 503."""

    def __init__(self, routes: Sequence[Route], changes: Changes) -> None:
        self._routes = {route.name: route for route in routes}
        self._changes = changes

    def allows(self, name: str, administrator: Administrator) -> bool:
        """Whether a key of that role may do it."""
        return administrator.role in self._routes[name].allowed

    async def read(
        self,
        name: str,
        administrator: Administrator,
        path: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str] = _EMPTY,
    ) -> Any:
        """The answer as its record describes it, or a `Document`."""
        route = self._routes[name]
        assert route.read is not None, name
        require_role(route, administrator)
        with typed_errors():
            call = OperationInput(administrator, read_path(path), read_texts(route.query, query), None)
            return await route.read(call)

    async def change(
        self,
        name: str,
        administrator: Administrator,
        request_id: str,
        path: Mapping[str, str] = _EMPTY,
        body: Mapping[str, Any] = _EMPTY,
        *,
        idempotency_key: str | None = None,
    ) -> Any:
        """The answer as its record describes it. To a repetition under the same `idempotency_key` it is the first
        one's, with null in place of secrets."""
        route, members = self._routes[name], dict(body)
        require_role(route, administrator)
        with typed_errors():
            call = OperationInput(
                administrator, read_path(path), read_texts(route.query, _EMPTY), read_body(route, members)
            )
            repetition = repetition_of(
                administrator.key_id, idempotency_key, route.method, PREFIX + route.path.format(**path), "", members
            )
            answer = await make_change(self._changes, route, call, request_id, repetition)
        return orjson.loads(answer.body) if isinstance(answer, KeptAnswer) else answer

    async def store(
        self,
        name: str,
        administrator: Administrator,
        content: bytes,
        path: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str] = _EMPTY,
    ) -> Any:
        """Take the bytes of a file. The answer as its record describes it."""
        route = self._routes[name]
        assert route.store is not None, name
        assert route.octets is not None, name
        require_role(route, administrator)
        require_size(route.octets, content)
        with typed_errors():
            call = OperationInput(administrator, read_path(path), read_texts(route.query, query), content)
            return await route.store(call)

    def body_of(self, name: str, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """A form's fields as the JSON members that the route takes, by its own kinds. An empty text is an absent
        member; fields that the route does not know are left out. What cannot be read is passed on for `change` to
        refuse by its name."""
        record = self._routes[name].body or _NOTHING
        body: dict[str, Any] = {}
        for member, declared in record.members.items():
            given = [text for text in texts.get(member, ()) if text != ""]
            if not given:
                continue
            if isinstance(declared.kind, ListOf) and len(given) > 1:
                body[member] = [declared.kind.item.from_text(text) for text in given]
            else:
                body[member] = declared.kind.from_text(given[0])
        return body
