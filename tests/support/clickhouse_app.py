"""ClickHouse's HTTP interface over chDB, as far as clickhouse-connect uses it; run by `ClickHouseServer`.

    python -m tests.support.clickhouse_app FOLDER PORT USER PASSWORD

It has the engine, and so the SQL, of a server of the same version. It has no roles, quotas, sessions, query ids or
progress, and answers uncompressed.
"""

import base64
import binascii
import gzip
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from typing import Protocol

import chdb
import lz4.frame
import uvicorn
from backports import zstd
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

DEFAULT_FORMAT = "TabSeparated"
AUTHENTICATION_FAILED = 516
_NO_SETTINGS = {
    "query",
    "database",
    "user",
    "password",
    "session_id",
    "query_id",
    "role",
    "quota_key",
    "wait_end_of_query",
    "buffer_size",
    "compress",
    "decompress",
    "enable_http_compression",
    "send_progress_in_http_headers",
    "http_headers_progress_interval_ms",
    "cancel_http_readonly_queries_on_client_close",
    "client_protocol_version",
}


def _lz4_frames(data: bytes) -> bytes:
    """The client sends a frame for each block."""
    plain = []
    while data:
        frame = lz4.frame.LZ4FrameDecompressor()
        plain.append(frame.decompress(data))
        data = frame.unused_data or b""
    return b"".join(plain)


_DECOMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.decompress,
    "lz4": _lz4_frames,
    "zstd": zstd.decompress,
}
_INSERT = re.compile(rb"\s*(INSERT\s+INTO\b[^\n]*?)\s+FORMAT\s+(\w+)[ \t]*(?:\n|$)", re.IGNORECASE)
"""Up to the end of the line: data may begin with what looks like space, 32 columns of 10 rows do."""
_CODE = re.compile(r"Code: (\d+)\.")


class Connection(Protocol):
    """The part of `chdb.Connection`, which has no types, that is used here."""

    def query(self, query: str, format: str) -> "Result": ...
    def close(self) -> None: ...


class Result(Protocol):
    def bytes(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request: the statement, its data, and what is set for it alone."""

    statement: bytes
    """An INSERT may have its data behind it, after the line that ends in FORMAT."""
    database: str
    settings: Mapping[str, str]
    """With bound parameters as `param_NAME`."""


class Server:
    def __init__(self, path: str, user: str, password: str) -> None:
        self._path = path
        self._credentials = f"{user}:{password}"
        self._engine = chdb.connect(path)  # which lives as long as a connection does

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/ping", self._ping), Route("/", self._answer, methods=["GET", "POST"])])

    async def _ping(self, _: Request) -> Response:
        return PlainTextResponse("Ok.\n")

    async def _answer(self, request: Request) -> Response:
        if not self._knows(request.headers.get("authorization", "")):
            return _error(
                f"Code: {AUTHENTICATION_FAILED}. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)"
            )
        try:
            answer = await run_in_threadpool(self._run, await _call(request))
        except Exception as error:  # the engine's errors have no common class
            return _error(str(error))
        headers = {"X-ClickHouse-Format": DEFAULT_FORMAT, "X-ClickHouse-Timezone": "UTC"}
        return Response(answer, headers={**headers, "X-ClickHouse-Summary": json.dumps({})})

    def _knows(self, authorization: str) -> bool:
        try:
            return base64.b64decode(authorization.removeprefix("Basic ")).decode() == self._credentials
        except (binascii.Error, UnicodeDecodeError):
            return False

    def _run(self, call: Call) -> bytes:
        """On a connection of its own, so that what is set for a call ends with it."""
        connection: Connection = chdb.connect(self._path)
        try:
            if call.database:
                connection.query(f"USE `{call.database}`", DEFAULT_FORMAT)
            for name, value in call.settings.items():
                quoted = value.replace("\\", "\\\\").replace("'", "\\'")
                connection.query(f"SET {name} = '{quoted}'", DEFAULT_FORMAT)
            if insert := _INSERT.match(call.statement):
                return self._insert(connection, insert[1].decode(), insert[2].decode(), call.statement[insert.end() :])
            return connection.query(call.statement.decode(), DEFAULT_FORMAT).bytes() or b""
        finally:
            connection.close()

    def _insert(self, connection: Connection, statement: str, format: str, data: bytes) -> bytes:
        """From a file, as the engine makes one block of that; what it is sent piece by piece stays in pieces."""
        with tempfile.NamedTemporaryFile(suffix=".data") as file:
            file.write(data)
            file.flush()
            connection.query(f"{statement} FROM INFILE '{file.name}' FORMAT {format}", DEFAULT_FORMAT)
        return b""


async def _call(request: Request) -> Call:
    fields = dict(request.query_params)
    body = await request.body()
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/"):  # long parameters
        message = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
        for part in message.walk():
            if name := part.get_param("name", header="Content-Disposition"):
                fields[str(name)] = str(part.get_payload(decode=True), "utf-8")
        body = b""
    body = _DECOMPRESS[request.headers.get("content-encoding", "")](body)
    statement = b"\n".join(part for part in (fields.get("query", "").encode(), body) if part)
    settings = {name: value for name, value in fields.items() if name not in _NO_SETTINGS}
    return Call(statement, fields.get("database", ""), settings)


def _error(text: str) -> Response:
    """As ClickHouse says it: the code in a header, the text in the body."""
    found = _CODE.search(text)
    code = int(found[1]) if found else 1001
    status = 403 if code == AUTHENTICATION_FAILED else 404 if code in {60, 81} else 400 if code in {47, 62} else 500
    return PlainTextResponse(f"{text} (version 26.9.2.1)\n", status, {"X-ClickHouse-Exception-Code": str(code)})


if __name__ == "__main__":
    folder, port, user, password = sys.argv[1:]
    uvicorn.run(
        Server(folder, user, password).app(), host="127.0.0.1", port=int(port), log_level="warning", lifespan="off"
    )
