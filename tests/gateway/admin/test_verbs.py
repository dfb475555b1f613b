"""One set of verbs: each operation has an HTTP route, a command and, where it is a person's action, a place in the
console."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gateway.management.cli
import gateway.management.console
from gateway.management.http.app import with_description
from gateway.management.http.openapi import openapi_document
from gateway.management.operations.context import AdminContext
from gateway.management.operations.policies import POLICIES
from gateway.management.operations.resources import admin_routes
from tests.gateway.admin.harness import TIERS
from tests.support.tenants import PEPPER

_NOTHING: Any = None
ROUTES = with_description(
    admin_routes(AdminContext(_NOTHING, PEPPER, TIERS, _NOTHING, _NOTHING, _NOTHING, invoice_grace_s=0))
)
OPERATIONS = {route.name for route in ROUTES}

NO_COMMAND = {
    "describe": "the document by which commands find the operations",
    "listAdminKeys": "admin-key works on the database: the first key needs no gateway",
    "createAdminKey": "as listAdminKeys",
    "revokeAdminKey": "as listAdminKeys",
    "listLimits": "limit list --tenant reads listStatedLimits, which tells the tenant, too",
    "replaceLimits": "limit set changes some limits, by updateLimits",
    "replaceRoutingPolicy": "route set changes some settings, by updateRoutingPolicy",
    "replaceSessionWindow": "session set changes some settings, by updateSessionWindow",
    "replaceAdapterLimits": "adapter-limit set changes some settings, by updateAdapterLimits",
    "replaceBillTo": "bill-to set changes some settings, by updateBillTo",
}
NOT_IN_CONSOLE = {
    "describe": "for programs",
    "readAdapterUpload": "a page's script calls it: adapter_upload.js",
    "storeAdapterFile": "a page's script calls it: adapter_upload.js",
    "completeAdapterUpload": "a page's script calls it: adapter_upload.js",
    "deleteAdapterUpload": "uploads expire after 24 hours",
    "updateAdapterLimits": "the form shows all settings and replaces them",
    "readCosts": "a report of the operator's costs: turnpike cost show",
    "listStatedLimits": "a tenant's page has its limits",
    "updateLimits": "the form shows all limits of a scope and replaces them",
    "updateRoutingPolicy": "the form shows all settings and replaces them",
    "updateBillTo": "the form shows all settings and replaces them",
    "updateSessionWindow": "the form shows all settings and replaces them",
}
"""Why an operation has none."""

_OF_A_POLICY = re.compile(r"\bpolicy\)?\.(read|update|replace)\b")


def named_in(package: Any) -> set[str]:
    """The operations that a package's code names. Those of policies have computed names."""
    (folder,) = package.__path__
    sources = [path.read_text(encoding="utf-8") for path in Path(folder).rglob("*.py")]
    texts = {text for source in sources for text in constants(source)}
    verbs = {verb for source in sources for verb in _OF_A_POLICY.findall(source)}
    return texts | {getattr(policy, verb) for policy in POLICIES for verb in verbs}


def constants(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize(
    ("package", "without", "face"),
    [
        (gateway.management.cli, NO_COMMAND, "command: a function in gateway/management/cli that calls client.read or"),
        (gateway.management.console, NOT_IN_CONSOLE, "form or page: a screen in gateway/management/console that calls"),
    ],
    ids=["command", "console"],
)
def test_each_operation_has_a_face_or_a_reason(package: Any, without: dict[str, str], face: str) -> None:
    named = named_in(package)
    missing = sorted(OPERATIONS - named - without.keys())
    assert not missing, f"{', '.join(missing)}: add a {face} the operation, or a reason to this file"
    needless = sorted(name for name in without if name in named or name not in OPERATIONS)
    assert not needless, f"{', '.join(needless)}: take the reason out of this file"


def test_each_operation_is_where_commands_look_for_it() -> None:
    document = openapi_document(ROUTES)
    described = {each["operationId"] for methods in document["paths"].values() for each in methods.values()}
    assert described == OPERATIONS
