"""Hostile clients over real sockets: each is answered or cut off, and no other client notices."""

import contextlib
import socket
import time
from collections.abc import Iterator

import orjson
import pytest

from gateway.http.bounds import MAX_HEAD_BYTES, MAX_PIPELINED_REQUESTS
from gateway.process import connection as connection_module
from tests.support.gateway import KEY, MAX_BODY_BYTES, Server, until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
GREETING = "Hello, world!"
MODELS = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()


def post(body: bytes | None = None, *headers: str, path: str = "/v1/chat/completions", version: str = "1.1") -> bytes:
    """A chat's bytes. `content-length` is there unless the headers say how long the body is."""
    body = orjson.dumps(CHAT) if body is None else body
    lines = [f"POST {path} HTTP/{version}", "host: x", f"authorization: Bearer {KEY}"]
    lines += ["content-type: application/json", *headers]
    if not any(header.startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class Wire:
    """A client that sends what it likes and reads answers one by one."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._file = raw.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self.raw.close()

    def send(self, data: bytes) -> "Wire":
        self.raw.sendall(data)
        return self

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = int(self._file.readline().split()[1]), {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._file.readline(), 16):
                body += self._file.read(size)
                self._file.readline()
            self._file.readline()
        else:
            body = self._file.read(int(headers.get("content-length", 0)))
        return status, headers, body

    def error(self, status: int) -> str:
        """The code of an error in the API's envelope."""
        got, headers, body = self.answer()
        assert got == status, body
        assert headers["content-type"] == "application/json"
        assert headers["x-request-id"]
        error = orjson.loads(body)["error"]
        assert list(error) == ["message", "type", "param", "code"]
        return error["code"]

    def is_closed(self) -> bool:
        """Once the server has closed it; nothing more may have come."""
        return self._file.read() == b""


@pytest.fixture
def wires(server: Server) -> Iterator:
    with contextlib.ExitStack() as stack:

        def connect() -> Wire:
            wire = Wire(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            stack.callback(wire.close)
            return wire

        yield connect


@pytest.fixture
def wire(wires) -> Wire:
    return wires()


@pytest.fixture
def hurry(monkeypatch) -> None:
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(connection_module, "MAX_HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", 0.2)


def answers(wires) -> None:
    status, _, body = wires().send(post()).answer()
    assert status == 200
    assert orjson.loads(body)["choices"][0]["message"]["content"] == GREETING


class TestUpgrade:
    @pytest.mark.parametrize(
        "headers",
        [
            ("connection: Upgrade", "upgrade: websocket"),
            ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQ"),
            ("connection: keep-alive, upgrade", "upgrade: h2c"),
        ],
    )
    @pytest.mark.parametrize("pieces", [1, 2, 300])
    def test_the_request_is_served_without(self, wire, headers, pieces):
        """Java's HTTP client asks every server for HTTP/2 in this way."""
        data = post(None, *headers) * 2
        for start in range(0, len(data), len(data) // pieces + 1):
            wire.send(data[start : start + len(data) // pieces + 1])
        for _ in range(2):
            status, _, body = wire.answer()
            assert status == 200, body
        assert wire.send(MODELS).answer()[0] == 200

    def test_a_body_is_not_taken_for_another_request(self, wire, engine):
        body = post()
        wire.send(post(body, "connection: upgrade", "upgrade: websocket"))
        assert wire.error(400) == "invalid_json"
        assert wire.send(MODELS).answer()[0] == 200
        assert engine.calls == []

    def test_no_tunnels(self, wire):
        assert wire.send(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n").error(400) == "invalid_http"
        assert wire.is_closed()


class TestHeads:
    @pytest.mark.parametrize(
        "head",
        [
            b"GET /v1/models HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % i for i in range(50_000)),
            b"GET /v1/models HTTP/1.1\r\nx: " + b"a" * 2**20,
            b"GET /" + b"a" * 2**20,
            b"GET /v1/models HTTP/1.1\r\n" + b"x" * 2**20,
            b"\r\n" * 2**19,
        ],
        ids=["headers", "value", "target", "name", "blank lines"],
    )
    @pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
    def test_a_head_without_bound_is_refused_while_it_comes_in(self, wires, head, end):
        wire = wires().send(head + end)
        assert wire.error(431) == "headers_too_large"
        assert wire.is_closed()
        answers(wires)

    @pytest.mark.parametrize("count", [101, 1000])
    def test_too_many_headers_in_one_piece(self, wire, count):
        headers = b"".join(b"x-%d: 1\r\n" % i for i in range(count - 1))
        assert wire.send(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n").error(431) == "headers_too_large"
        assert wire.send(MODELS).answer()[0] == 200

    def test_a_long_target_is_refused(self, wire):
        assert wire.send(MODELS.replace(b"models", b"models?" + b"a" * 9000)).error(414) == "uri_too_long"

    @pytest.mark.parametrize(
        "data",
        [
            b"nonsense\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"BREW /pot HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /v1/models HTTP/9.9\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nbad header: x\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nx: a\r\n folded\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nx: a\0b\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
            post(b"{}", "content-length: 2", "content-length: 3"),
            post(b"{}", "content-length: 2", "transfer-encoding: chunked"),
            post(b"{}", "content-length: -2"),
            post(b"{}", "content-length: +2"),
            post(b"{}", "content-length: 99999999999999999999"),
            post(b"0\r\n\r\n", "transfer-encoding: chunked, identity"),
            post(b"fffffffffffffffff\r\n", "transfer-encoding: chunked"),
        ],
        ids=range(17),
    )
    def test_what_is_not_http_gets_an_envelope(self, wires, engine, data):
        wire = wires().send(data)
        assert wire.error(400) == "invalid_http"
        assert wire.is_closed()
        assert engine.calls == []
        answers(wires)

    @pytest.mark.parametrize("method", [b"PROPFIND", b"PATCH", b"TRACE", b"DELETE", b"OPTIONS"])
    def test_a_method_that_no_path_has(self, wire, method):
        assert wire.send(MODELS.replace(b"GET", method)).error(405) == "method_not_allowed"

    def test_a_target_is_a_path_with_a_host_or_without(self, wires):
        """Proxies send the whole URL. The host in it, and the header, choose nothing."""
        assert wires().send(MODELS.replace(b"/v1", b"http://elsewhere.example:99/v1")).answer()[0] == 200
        assert wires().send(MODELS.replace(b"host: x", b"host: elsewhere.example")).answer()[0] == 200
        assert wires().send(MODELS.replace(b"/v1/models", b"//v1/models")).error(404) == "not_found"
        assert wires().send(MODELS.replace(b"/v1/models", b"/v1/../healthz")).error(404) == "not_found"

    @pytest.mark.parametrize(
        "head",
        [
            MODELS.replace(b"host: x\r\n", b""),
            MODELS.replace(b"host: x", b"host: x\r\nHost: x"),
            MODELS.replace(b"host: x", b"host: x\r\nHost: y").replace(b"HTTP/1.1", b"HTTP/1.0"),
            post(in_chunks(b"{}", 1), "transfer-encoding: chunked", version="1.0"),
        ],
    )
    def test_what_a_proxy_may_read_in_another_way_is_refused(self, wire, engine, head):
        assert wire.send(head).error(400) == "invalid_http"
        assert wire.is_closed()
        assert engine.calls == []

    def test_http_1_0_may_leave_out_its_host(self, wires):
        wire = wires().send(MODELS.replace(b"host: x\r\n", b"").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert wire.answer()[0] == 200

    def test_http_1_0(self, wires):
        wire = wires().send(post(version="1.0"))
        assert wire.answer()[0] == 200
        assert wire.is_closed()


@pytest.mark.usefixtures("hurry")
class TestDeadlines:
    def test_unfinished_heads_stop_nobody_and_are_cut_off(self, wires):
        heads = [wires().send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-") for _ in range(100)]
        answers(wires)
        for wire in heads:
            assert wire.error(408) == "request_timeout"
            assert wire.is_closed()

    def test_a_head_that_drips_is_cut_off(self, wire):
        with contextlib.suppress(ConnectionError):
            for byte in MODELS[:-1]:
                wire.send(bytes([byte]))
                time.sleep(0.02)
        assert wire.error(408) == "request_timeout"

    @pytest.mark.parametrize("before", [b"", MODELS], ids=["new", "kept"])
    @pytest.mark.parametrize("sent", [b"", b"\r\n"], ids=["nothing", "a blank line"])
    def test_a_connection_that_asks_nothing_is_closed(self, wire, before, sent):
        if before:
            assert wire.send(before).answer()[0] == 200
        wire.send(sent)
        assert wire.is_closed()

    def test_the_rest_of_a_body_that_nobody_wants_is_not_waited_for(self, wire):
        wire.send(post(b"{", "content-length: 100000", path="/v1/nothing"))
        assert wire.error(404) == "not_found"
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                wire.send(b" ")
                time.sleep(0.02)
        with contextlib.suppress(ConnectionError):
            assert wire.is_closed()

    def test_an_answer_may_take_longer(self, wire, engine):
        engine.reply, engine.pace_s = "x" * 20, 0.03
        status, _, body = wire.send(post()).answer()
        assert (status, body.count(b"x" * 20)) == (200, 1)


class TestBodies:
    @pytest.mark.parametrize("size", [1, 7, 4096])
    def test_chunks(self, wire, size):
        status, _, _ = wire.send(post(in_chunks(orjson.dumps(CHAT), size), "transfer-encoding: chunked")).answer()
        assert status == 200

    def test_one_that_says_it_is_too_large(self, wire):
        wire.send(post(b" " * 2 * MAX_BODY_BYTES))
        assert wire.error(413) == "request_too_large"
        assert wire.send(MODELS).answer()[0] == 200

    def test_one_that_becomes_too_large(self, wire):
        wire.send(post(in_chunks(b" " * 2 * MAX_BODY_BYTES, 10_000), "transfer-encoding: chunked"))
        assert wire.error(413) == "request_too_large"
        assert wire.send(MODELS).answer()[0] == 200

    def test_one_that_says_it_is_astronomic_is_not_waited_for(self, wire):
        wire.send(post(b"{", "content-length: 999999999999999999"))
        assert wire.error(413) == "request_too_large"

    def test_trailers_are_dropped(self, wire):
        data = in_chunks(orjson.dumps(CHAT), 50)[:-2] + b"authorization: Bearer other\r\n\r\n"
        assert wire.send(post(data, "transfer-encoding: chunked")).answer()[0] == 200
        assert wire.send(MODELS).answer()[0] == 200

    @pytest.mark.parametrize("kind", ["trailers", "one trailer", "extension"])
    def test_what_surrounds_a_body_is_bounded(self, wire, engine, kind):
        noise = {
            "trailers": b"5\r\n{    \r\n0\r\n" + b"a: b\r\n" * MAX_HEAD_BYTES,
            "one trailer": b"5\r\n{    \r\n0\r\na: " + b"b" * 5 * MAX_HEAD_BYTES,
            "extension": b"5;a=" + b"b" * 5 * MAX_HEAD_BYTES,
        }[kind]
        assert wire.send(post(noise, "transfer-encoding: chunked")).error(431) == "headers_too_large"
        assert wire.is_closed()
        assert engine.calls == []

    def test_a_chunk_that_is_not_one(self, wire, engine):
        wire.send(post(b"5\r\n{    \r\nxyz\r\n", "transfer-encoding: chunked"))
        assert wire.error(400) == "invalid_http"
        assert engine.calls == []

    def test_continue_is_said_when_the_body_is_wanted(self, wire):
        body = orjson.dumps(CHAT)
        head, _ = post(body, "expect: 100-continue").split(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert wire.answer()[0] == 100
        assert wire.send(body).answer()[0] == 200

    @pytest.mark.parametrize(
        ("header", "status"), [("content-length: 99999999", 413), ("content-encoding: gzip", 415)], ids=["413", "415"]
    )
    def test_continue_is_not_said_when_it_is_not(self, wire, header, status):
        head, _ = post(b"{}", "expect: 100-continue", header).split(b"\r\n\r\n")
        assert wire.send(head + b"\r\n\r\n").error(status)


class TestPipelines:
    def test_answers_come_in_order(self, wire):
        ids = [f"id-{i}" for i in range(MAX_PIPELINED_REQUESTS)]
        wire.send(b"".join(MODELS.replace(b"host: x", f"host: x\r\nx-request-id: {each}".encode()) for each in ids))
        assert [wire.answer()[1]["x-request-id"] for _ in ids] == ids

    @pytest.mark.parametrize(
        "behind", [MODELS * 24, MODELS * 1000, MODELS * MAX_PIPELINED_REQUESTS + b"nonsense\r\n\r\n"]
    )
    def test_not_more_than_some_wait(self, wire, engine, behind):
        """The one that runs is answered in full, and so are those that wait within the bound; then it is closed."""
        engine.reply, engine.pace_s = "x" * 20, 0.01
        wire.send(post() + behind)
        status, _, body = wire.answer()
        assert (status, body.count(b"x" * 20)) == (200, 1)
        waited = [wire.answer() for _ in range(MAX_PIPELINED_REQUESTS)]
        assert [status for status, _, _ in waited] == [200] * MAX_PIPELINED_REQUESTS
        assert [headers.get("connection") for _, headers, _ in waited].index("close") == MAX_PIPELINED_REQUESTS - 1
        assert wire.is_closed()

    def test_of_those_that_wait_one_whose_body_is_not_http_is_not_answered(self, wire, engine):
        engine.reply, engine.pace_s = "x" * 20, 0.01
        wire.send(post() + MODELS + post(b"no chunk", "transfer-encoding: chunked"))
        assert [wire.answer()[0] for _ in range(2)] == [200, 200]
        assert wire.is_closed()

    @pytest.mark.parametrize("stream", [False, True])
    def test_nonsense_behind_a_request_does_not_spoil_its_answer(self, wire, engine, stream):
        engine.reply, engine.pace_s = "x" * 20, 0.01
        wire.send(post(orjson.dumps(CHAT | {"stream": stream})) + b"nonsense\r\n\r\n")
        status, _, body = wire.answer()
        assert (status, body.count(b"x")) == (200, 20 + body.count(b"index"))
        assert wire.is_closed()

    def test_hanging_up_with_requests_waiting_ends_the_work(self, wires, engine):
        engine.reply, engine.pace_s = "x" * 400, 0.01
        wire = wires().send(post(orjson.dumps(CHAT | {"stream": True})))
        until(lambda: engine.generated > 5)
        wire.send(MODELS)
        time.sleep(0.05)
        wire.raw.shutdown(socket.SHUT_RDWR)
        until(lambda: not engine.live, timeout_s=2)
        assert engine.generated < 400
        engine.reply, engine.pace_s = GREETING, 0
        answers(wires)
