"""State of one HTTP request while it is served."""

import time
from dataclasses import dataclass, field

from starlette.types import Scope

from gateway.tenancy.records import Principal

_KEY = "turnpike.request_state"


@dataclass(slots=True)
class RequestState:
    """Written by the middleware, read by endpoints and by the access log.

    `status`: of the response; None until it starts. `principal`: None on open paths and on those of administrators.
    `owner`: the tenant's principal of the presented key, also where that is revoked, expired or suspended and there is
    no `principal`. `key_id`: public id of the tenant's or administrator's key. `model`: as the client names it.
    `error`, `error_status`: code and status of the error, also of one that was raised after the response had started.
    `limit_name`: scope and name of the limit that refused the request. `metered`: it has a usage record.
    """

    request_id: str
    started: float = field(default_factory=time.perf_counter)
    principal: Principal | None = None
    owner: Principal | None = None
    key_id: str | None = None
    status: int | None = None
    model: str = ""
    error: str | None = None
    error_status: int | None = None
    limit_name: str = ""
    metered: bool = False

    @property
    def elapsed_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1e3

    def authenticate(self, principal: Principal) -> None:
        """The key is valid for this principal."""
        self.principal = principal
        self.identify(principal)

    def identify(self, owner: Principal) -> None:
        """The key is `owner`'s, valid or not."""
        self.owner = owner
        self.key_id = owner.key_id

    def on_metered(self) -> None:
        """A usage record of the request is open."""
        self.metered = True

    def caller(self) -> Principal:
        """The principal. Invariant: the path needs a key."""
        assert self.principal is not None, "an endpoint that needs a key was reached without one"
        return self.principal


def begin_request(scope: Scope, request_id: str) -> RequestState:
    state = RequestState(request_id)
    scope[_KEY] = state
    return state


def request_state(scope: Scope) -> RequestState:
    state = scope[_KEY]
    assert isinstance(state, RequestState)
    return state
