"""The OpenAPI document says what the API does: generated requests, right ones and wrong ones, get what it announces."""

import asyncio
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gateway.admission import Limiter, MemoryStore
from gateway.analytics import open_analytics
from gateway.analytics.prepared import PreparedAnalytics
from gateway.config.store_urls import normalise_database_url
from gateway.http.access import AccessPolicy
from gateway.http.middleware import ErrorMiddleware, MountByPrefix
from gateway.management.http.app import AdminApp, with_description
from gateway.management.http.openapi import openapi_document
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.change import COMMAND_LINE
from gateway.management.operations.context import AdminContext
from gateway.management.operations.idempotency import HEADER
from gateway.management.operations.resources import admin_routes
from gateway.management.operations.roles import Role
from gateway.management.operations.routes import PREFIX
from gateway.metering.journal.journal import Journal
from gateway.telemetry.outcomes import RequestOutcomes
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from tests.gateway.admin.harness import TIERS, unrecorded
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter

_NOTHING: Any = None
ROUTES = with_description(
    admin_routes(AdminContext(_NOTHING, PEPPER, TIERS, _NOTHING, _NOTHING, _NOTHING, invoice_grace_s=0))
)
DOCUMENT = openapi_document(ROUTES)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
# Requests without a key are test_access's: here each has one.
REFUSALS = ["400", "401", "403", "404", "405", "409", "413", "414", "415", "422", "431", "5xx"]
SCHEMA = schemathesis.openapi.from_dict(
    DOCUMENT | {"security": []},
    config=SchemathesisConfig.from_dict(
        {"base-url": f"http://turnpike{PREFIX}", "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
    ),
)


class Server:
    """The application on a loop of its own, and things that are there to be named."""

    def __init__(self, client: TestClient, key: str, there: dict[str, str]) -> None:
        self.client = client
        self.headers = {"authorization": f"Bearer {key}"}
        self.there = there


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("openapi")
    if request.param == "sqlite":
        url = normalise_database_url(f"sqlite:///{folder / 'turnpike.db'}")
    else:
        from tests.support.servers import new_postgres_database

        url = normalise_database_url(new_postgres_database(request.getfixturevalue("postgres").url))
    asyncio.run(upgrade(url))

    database = open_database(url)
    analytics = PreparedAnalytics(open_analytics(f"chdb://{folder / 'analytics'}"))
    context = AdminContext(
        database,
        PEPPER,
        TIERS,
        analytics,
        folder / "journal.db",
        Limiter(MemoryStore()),
        invoice_grace_s=0,
        gpu_hour_dollars=Decimal(2),
    )
    app = AdminApp(context)
    with TestClient(
        ErrorMiddleware(MountByPrefix(Starlette(), PREFIX, app), RequestOutcomes(), unrecorded, AccessPolicy()),
        base_url="http://turnpike",
    ) as client:

        async def prepare() -> tuple[str, dict[str, str]]:
            journal = Journal(context.journal_path)
            await journal.aclose()
            store = TenantWriter(database, PEPPER)
            tenant = await store.create_tenant("acme", "premium")
            key = await store.create_key("acme")
            admin = await AdminKeyStore(database, PEPPER).create("test", Role.ADMIN, COMMAND_LINE)
            return admin.plaintext, {"tenant_id": tenant.id, "key_id": key.record.public_id}

        async def close() -> None:
            await app.aclose()
            await analytics.aclose()
            await database.dispose()

        yield Server(client, *client.portal.call(prepare))
        client.portal.call(close)


@SCHEMA.parametrize()
@settings(
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_generated_requests_get_what_the_document_announces(case: schemathesis.Case, server: Server) -> None:
    for name, value in (case.path_parameters or {}).items():
        if name in server.there and len(str(value)) == len(server.there[name]):
            case.path_parameters[name] = server.there[name]
    if (case.headers or {}).get(HEADER, "").isalnum():
        case.headers[HEADER] = uuid.uuid4().hex  # or nearly all would be repetitions
    prepared = requests.Request(**case.as_transport_kwargs(headers=server.headers)).prepare()
    assert prepared.url is not None
    headers = {
        name: value if isinstance(value, bytes) else value.encode("latin-1") for name, value in prepared.headers.items()
    }
    answer = server.client.request(prepared.method or "", prepared.url, headers=headers, content=prepared.body)
    response = Response(
        status_code=answer.status_code,
        headers={name: [value] for name, value in answer.headers.items()},
        content=answer.content,
        request=prepared,
        elapsed=0.0,
        verify=False,
        http_version="1.1",
    )
    case.validate_response(response, checks=CHECKS)


def test_every_route_is_in_it_and_says_who_may() -> None:
    operations = {
        (method.upper(), path): operation
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
    }
    assert operations.keys() == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        assert operations[route.method, route.path]["x-roles"] == sorted(route.allowed)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_it_is_served(server: Server) -> None:
    """To anyone: it is the same for everyone. Every other path of the admin API needs a key."""
    assert server.client.get(f"{PREFIX}/openapi.json").json() == DOCUMENT
    assert server.client.post(f"{PREFIX}/openapi.json").status_code == 401
    assert [route.name for route in ROUTES if route.is_public] == ["describe"]


def test_objects_are_closed() -> None:
    """So that an undeclared member would be noticed, in requests and in answers."""
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema["additionalProperties"] is False, name
