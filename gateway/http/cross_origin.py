"""Cross-origin requests of browsers (CORS, https://fetch.spec.whatwg.org/#http-cors-protocol) to the endpoints of keys.

Keys travel in headers and never in cookies, so no credentials are allowed. The console and the admin API stay within
their own origin.
"""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX = "/v1/"
MAX_AGE_SECONDS = 600
"""Time for which a browser keeps the answer to a preflight; 600 is the most that all keep."""

_METHODS = ("GET", "POST", "DELETE")
_EXPOSED = (
    *("x-request-id", "openai-processing-ms", "retry-after", "retry-after-ms"),
    *("x-turnpike-requested-model", "x-turnpike-served-model", "x-turnpike-route-reason", "x-turnpike-adapter"),
    *(f"x-ratelimit-{part}-{unit}" for unit in ("requests", "tokens") for part in ("limit", "remaining", "reset")),
)
"""Headers of a response that a page may read."""


class CrossOrigin:
    """Answers preflights, which have no key, and names the allowed origin in every response below `PREFIX`."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """`origins`: as browsers send them, such as `https://chat.example.com`; `*` allows all."""
        self._app = app
        self._shared = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED,
            max_age=MAX_AGE_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_shared = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        await (self._shared if is_shared else self._app)(scope, receive, send)
