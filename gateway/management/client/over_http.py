"""Operations by a gateway's admin API, over TCP with an administrator's key or over the Unix socket without one.

The gateway's OpenAPI document says where each operation is, so a command needs nothing of the gateway's code, and an
operation that a gateway of another version lacks is found before anything is sent.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gateway.common.unix_socket import connect
from gateway.errors import OperatorError
from gateway.management.client.transport import Refused

PREFIX = "/admin/v1"
CONNECT_S = 10.0
DESCRIPTION_S = 10.0
"""Timeout of the first answer, by which a gateway shows that it is one."""
ANSWER_S = 600.0
"""Timeout of an operation. A reconciliation of many months takes minutes."""


class GatewayUnreachable(OperatorError):
    """No gateway answers there."""


class OverHTTP:
    """A `Transport`. `where`: the gateway, as messages name it."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        where: str,
        warn: Callable[[str], None],
        *,
        base: str = "",
        key: str | None = None,
    ) -> None:
        self._connection = connection
        self._where = where
        self._warn = warn
        self._has_answered = False
        self._base = base + PREFIX
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    def read(self, name: str, path: Mapping[str, str], query: Mapping[str, str]) -> Any:
        return self._perform(name, path, f"?{urlencode(query)}" if query else "", None)

    def change(self, name: str, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        takes_body = "requestBody" in self._operation(name)[2]
        return self._perform(name, path, "", json.dumps(body).encode() if takes_body else b"")

    def store(self, name: str, path: Mapping[str, str], query: Mapping[str, str], content: bytes) -> Any:
        return self._perform(name, path, f"?{urlencode(query)}" if query else "", content, "application/octet-stream")

    def close(self) -> None:
        self._connection.close()

    def _perform(
        self,
        name: str,
        path: Mapping[str, str],
        query: str,
        body: bytes | None,
        media_type: str = "application/json",
    ) -> Any:
        method, template, _ = self._operation(name)
        target = template.format(**{key: quote(value, safe="") for key, value in path.items()})
        return self._request(method, target + query, body, media_type=media_type)

    def _operation(self, name: str) -> tuple[str, str, Mapping[str, Any]]:
        """Method, path and description of an operation.

        Raises:
            OperatorError: the gateway has none of that name.
        """
        if name not in self._described:
            raise OperatorError(
                f"the gateway at {self._where} is version {self._version}, which has no operation {name}: this command "
                f"is version {_own_version()}"
            )
        return self._described[name]

    @cached_property
    def _document(self) -> Any:
        document = self._request("GET", "/openapi.json", None, DESCRIPTION_S)
        if not isinstance(document, dict) or "paths" not in document:
            raise GatewayUnreachable(f"{self._where} does not answer as a Turnpike gateway")
        version = str(document["info"]["version"])
        if version != _own_version():
            self._warn(f"the gateway at {self._where} is version {version}, this command is version {_own_version()}")
        return document

    @property
    def _version(self) -> str:
        return str(self._document["info"]["version"])

    @cached_property
    def _described(self) -> Mapping[str, tuple[str, str, Mapping[str, Any]]]:
        return {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self._document["paths"].items()
            for method, operation in methods.items()
        }

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None,
        timeout_s: float = ANSWER_S,
        media_type: str = "application/json",
    ) -> Any:
        is_reused = self._has_answered and self._connection.sock is not None
        try:
            response, content = self._exchange(method, target, body, timeout_s, media_type)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if method == "GET" and is_reused:  # the gateway closes idle connections, as behind a pager
                return self._request(method, target, body, timeout_s)
            unknown = "" if method == "GET" else "; it may have made the change: see turnpike audit list"
            raise GatewayUnreachable(f"the gateway at {self._where} broke off: {_reason(error)}{unknown}") from error
        self._has_answered = True
        return self._answer(response.status, response.headers.get_content_type(), content)

    def _exchange(
        self, method: str, target: str, body: bytes | None, timeout_s: float, media_type: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """
        Raises:
            GatewayUnreachable: no connection.
            OSError, HTTPException: the connection broke.
        """
        headers = {**self._headers, **({"content-type": media_type} if body else {})}
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except (OSError, http.client.HTTPException) as error:
                raise GatewayUnreachable(f"no gateway answers at {self._where}: {_reason(error)}") from error
        self._connection.sock.settimeout(timeout_s)
        self._connection.request(method, self._base + target, body or None, headers)
        response = self._connection.getresponse()
        return response, response.read()

    def _answer(self, status: int, media_type: str, content: bytes) -> Any:
        """
        Raises:
            Refused: the gateway refused the request.
            GatewayUnreachable: the answer is none of a gateway.
        """
        is_json = media_type == "application/json"
        try:
            value = json.loads(content) if is_json else content.decode()
        except ValueError:
            raise GatewayUnreachable(f"{self._where} does not answer as a Turnpike gateway") from None
        if 200 <= status < 300:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise GatewayUnreachable(f"{self._where} does not answer as a Turnpike gateway: HTTP status {status}")
        if status == 401:
            message = f"the gateway at {self._where} refuses the administrator's key"
            raise Refused(message, status, error.get("code"), None)
        raise Refused(error["message"], status, error.get("code"), error.get("param"))


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the Unix socket at `path`, at first by the connection `connected`."""

    def __init__(self, path: Path, connected: socket.socket) -> None:
        super().__init__("localhost")
        self._path = path
        self.sock = connected

    def connect(self) -> None:
        connected = connect(self._path, CONNECT_S)
        if connected is None:
            raise ConnectionRefusedError("the gateway has ended")
        self.sock = connected


def over_tcp(url: str, key: str, warn: Callable[[str], None]) -> OverHTTP:
    """The admin API of the gateway at a URL, `https://gateway.example.com` or with a path before `/admin/v1`. The `/v1`
    at the end of a base URL of SDKs is left out.

    Raises:
        OperatorError: it is no such URL.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
        raise OperatorError("the URL of a gateway has the form https://gateway.example.com:8080")
    if parts.username is not None or parts.password is not None:
        raise OperatorError("the URL of a gateway takes no credentials")
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(parts.hostname, port, timeout=CONNECT_S, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, port, timeout=CONNECT_S)
        if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            warn(f"the administrator's key can be read on the way to {parts.hostname}: use https")
    return OverHTTP(
        connection, f"{parts.scheme}://{parts.netloc}", warn, base=parts.path.rstrip("/").removesuffix("/v1"), key=key
    )


def over_socket(path: Path, connected: socket.socket, warn: Callable[[str], None]) -> OverHTTP:
    """The admin API of the gateway that serves the Unix socket at `path`."""
    return OverHTTP(UnixConnection(path, connected), str(path), warn)


def _own_version() -> str:
    import importlib.metadata  # slow, and needed after the gateway has answered

    return importlib.metadata.version("turnpike")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "timed out"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
