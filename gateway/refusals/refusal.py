"""One refused request."""

from typing import NamedTuple

from gateway.telemetry.outcomes import RequestOutcome

MAX_MODEL_CHARS = 128
"""Longest model name that is kept: names are the clients'."""


class Kind(NamedTuple):
    """The common values of refusals that are counted together. A tuple: it is made for each refused request, and tuples
    are the cheapest to make and to look up.

    `tenant_id`, `key_id`, `tier`: of the presented key, which may be revoked, expired or of a suspended
    tenant; "" if it is no key of a tenant. `model`: as the client named it, at most `MAX_MODEL_CHARS`; "" if the body
    was not read. `endpoint`: one of a closed set. `limit_name`: scope and name of the limit that refused; "" if none
    did.
    """

    tenant_id: str
    key_id: str
    tier: str
    model: str
    endpoint: str
    outcome: RequestOutcome
    status: int
    code: str
    limit_name: str


class Refusal(NamedTuple):
    """A request that was answered with an error before it had a usage record. `at_ms`: Unix milliseconds.
    `tenant_name`: "" if there is no tenant."""

    at_ms: int
    request_id: str
    tenant_name: str
    kind: Kind
