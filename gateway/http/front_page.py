"""GET /: a page for people who open the server's address in a browser. It needs no key and loads nothing else."""

from importlib.metadata import version

from starlette.types import Receive, Scope, Send

from gateway.http.responses import send_body

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Turnpike</title>
<style>
:root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }}
body {{ max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }}
dt {{ margin-top: 0.75rem; }}
dd {{ margin: 0; }}
</style>
<h1>Turnpike {version}</h1>
<p>A multi-tenant gateway for large language models, and it runs. The base URL of OpenAI's clients is this address with
<code>/v1</code>, that of Anthropic's clients is the address itself. Both need an API key.</p>
<dl>
{links}
</dl>
</html>
"""
_CONSOLE = ("/console", "the console, for administrators and tenants")
_LINKS = (
    ("/docs", 'the reference of the API, and <a href="/openapi.json">its OpenAPI document</a>'),
    ("/health", "whether the process answers"),
    ("/readyz", "whether requests should be sent here"),
    ("/metrics", "metrics for Prometheus"),
)


class FrontPage:
    """An ASGI endpoint. `has_console`: whether the page links to the console."""

    def __init__(self, *, has_console: bool) -> None:
        links = (_CONSOLE, *_LINKS) if has_console else _LINKS
        listed = "\n".join(f'<dt><a href="{path}">{path}</a></dt><dd>{text}</dd>' for path, text in links)
        self._body = _PAGE.format(version=version("turnpike"), links=listed).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_body(send, 200, self._body, _HEADERS, "text/html; charset=utf-8")
