"""The gateway with fake keys, on a loopback port."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from starlette.applications import Starlette

from gateway.http.drain import Drain
from gateway.process.listener import bind
from gateway.process.server import Server as TurnpikeServer
from gateway.tenancy.errors import InvalidKey, StoreUnavailable
from gateway.tenancy.limits import Limits, ScopedLimits, ScopeKind
from gateway.tenancy.policies import RoutingPolicy, TenantPolicies
from gateway.tenancy.records import Principal

KEY = "tp-standard"
PREMIUM_KEY = "tp-premium"
AUTHORISED = {"authorization": f"Bearer {KEY}"}
HEADERS = AUTHORISED | {"content-type": "application/json"}
MAX_BODY_BYTES = 256 * 1024

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BODY = {"model": "tiny", "messages": [USER]}
PROMPT_TOKENS = 21
"""Of `BODY`, with the fake template."""

EASY, HARD = "easy", "a hard one"
"""Questions for the small model and for the large one, by the routing weights of tests."""


class FakeAuthenticator:
    """Two tenants' keys in memory. `down`: the store of keys does not answer. `ended`: why keys are not in use."""

    def __init__(self) -> None:
        self.down = False
        self.closed = False
        self.ended: dict[str, InvalidKey] = {}
        self.principals = {
            KEY: Principal("tenant-1", "acme", "standard", "pubid1"),
            PREMIUM_KEY: Principal("tenant-2", "globex", "premium", "pubid2"),
        }

    async def authenticate(self, presented: str) -> Principal:
        if self.down:
            raise StoreUnavailable("the database at db.internal does not answer")
        if presented not in self.principals:
            raise InvalidKey("unknown API key")
        return self.principals[presented]

    def why_ended(self, public_id: str) -> InvalidKey | None:
        return self.ended.get(public_id)

    async def aclose(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Server:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(app: Starlette, **options: float) -> Iterator[Server]:
    """The same with other bounds on its connections."""
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        uvicorn_server = TurnpikeServer(app, Drain(), delay_s=0, deadline_s=10, on_ready=lambda: None, **options)
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: uvicorn_server.started)
        try:
            yield Server(listener.getsockname()[1])
        finally:
            uvicorn_server.should_exit = True
            thread.join(10)


def until(condition, timeout_s: float = 15.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def limit(authenticator, kind=ScopeKind.TENANT, scope_id="", **limits):
    """Add limits to the standard tenant's principal."""
    principal = authenticator.principals[KEY]
    stated = (*principal.limits, ScopedLimits(kind, scope_id, Limits(**limits)))
    authenticator.principals[KEY] = replace(principal, limits=stated)


def allow(authenticator, key=KEY, **policy) -> None:
    """Set the routing policy of the tenant of `key`."""
    authenticator.principals[key] = replace(
        authenticator.principals[key], policies=TenantPolicies(RoutingPolicy(**policy))
    )
