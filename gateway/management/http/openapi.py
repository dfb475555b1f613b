"""The OpenAPI document, from the routes themselves."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from gateway.management.operations.idempotency import HEADER, MAX_CHARS
from gateway.management.operations.routes import PATH_KINDS, PREFIX, Documents, Route
from gateway.management.operations.schema import ListOf, Member, records_in

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The invalid field."},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
_ALWAYS = {
    401: "Missing or invalid key.",
    403: "The role of the key does not allow the operation.",
    405: "Method not allowed.",
    414: "The URL is too long.",
    431: "Too many headers.",
    503: "The database does not answer. Retry after Retry-After.",
}
_OF_INPUT = {400: "Invalid parameter or member; `param` names it."}
_OF_BODY = {
    408: "The body did not arrive in time.",
    409: "Conflict with the current state, or the Idempotency-Key was used for another request.",
    413: "The body is too large.",
    415: "The body is not plain UTF-8 JSON.",
}
_REPEATABLE = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CHARS, "pattern": "^[!-~]+$"},
    "description": (
        "The same request with the same key within 24 hours has one effect and gets the same answer again, secrets as "
        "null and with the header idempotent-replayed."
    ),
}


def openapi_document(routes: Iterable[Route]) -> dict[str, Any]:
    """OpenAPI 3.1. `x-roles` of an operation: which administrators may."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        for record in records_in(route.json_answer):
            _define(schemas, record.name, record.define(answer=True))
        if route.body is not None:
            for record in records_in(route.body):
                _define(schemas, record.name, record.define(answer=False))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnpike admin API",
            "version": version("turnpike"),
            "description": "Errors have the OpenAI API's envelope. Unknown members and parameters are refused.",
        },
        "servers": [{"url": PREFIX}],
        "security": [{"administrator": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "administrator": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key from `turnpike admin-key create`.",
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "x-roles": sorted(route.allowed),
        "parameters": [
            *(_parameter("path", name, Member(PATH_KINDS[name])) for name in route.path_names),
            *(_parameter("query", name, member) for name, member in route.query.items()),
            *([_REPEATABLE] if route.write is not None else []),
        ],
        "responses": _responses(route),
    }
    if route.is_public:
        said["security"] = []
    if route.body is not None:
        said["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.body.describe()}}}
    if route.octets is not None:
        schema = {"type": "string", "contentMediaType": "application/octet-stream", "maxLength": route.octets.max_bytes}
        said["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": schema}}}
    return said


def _parameter(place: str, name: str, member: Member) -> dict[str, Any]:
    said = {"name": name, "in": place, "required": member.required, "schema": member.kind.describe()}
    if isinstance(member.kind, ListOf):
        said |= {"style": "form", "explode": False}
    return said | ({"description": member.about} if member.about else {})


def _responses(route: Route) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": route.json_answer.describe()}}
    if isinstance(route.answer, Documents):
        content |= {media_type: {"schema": {"type": "string"}} for media_type in route.answer.media_types}
    refusals = _ALWAYS | _OF_INPUT | {404: "Unknown URL or record."}
    if route.read is None:
        refusals |= _OF_BODY
    return {str(route.status): {"description": "Done.", "content": content}} | {
        str(status): {
            "description": about,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, about in sorted(refusals.items())
    }


def _define(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    assert schemas.setdefault(name, schema) == schema, f"two records are named {name}"
