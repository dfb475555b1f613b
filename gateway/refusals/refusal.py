"""One refused request."""

from dataclasses import dataclass

from gateway.telemetry.outcomes import RequestOutcome

MAX_MODEL_CHARS = 128
"""Longest model name that is kept: names are the clients'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that was answered with an error before it had a usage record.

    `tenant_id`, `tenant_name`, `key_id`, `tier`: of the presented key, which may be revoked, expired or of a suspended
    tenant; "" if it is no key of a tenant. `model`: as the client named it, at most `MAX_MODEL_CHARS`; "" if the body
    was not read. `endpoint`: one of a closed set. `limit_name`: scope and name of the limit that refused; "" if none
    did.
    """

    at_ms: int
    request_id: str
    tenant_id: str = ""
    tenant_name: str = ""
    key_id: str = ""
    tier: str = ""
    model: str = ""
    endpoint: str
    outcome: RequestOutcome
    status: int
    code: str
    limit_name: str = ""
