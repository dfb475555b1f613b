"""The findings of `turnpike doctor` on workers and on the gRPC listener."""

import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.workers.frames import VERSION
from engine.workers.messages import Failed, FromWorker, encode
from engine.workers.tls import TLSFiles, server_context
from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, State
from gateway.doctor.grpc import grpc
from gateway.doctor.workers import workers
from tests.support.certificates import make_authority
from tests.support.servers import free_port
from tests.support.worker_messages import ready

REFUSING = "tcp://127.0.0.1:9"


def frame(message: FromWorker, version: int = VERSION) -> bytes:
    payload = encode(message)
    return struct.pack(">IB", len(payload), version) + payload


@contextmanager
def answering(greeting: bytes, files: TLSFiles | None = None) -> Iterator[str]:
    """A worker's address, where each client gets the greeting."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client does not trust it
                context = None if files is None else server_context(files)
                client = self.request if context is None else context.wrap_socket(self.request, server_side=True)
                client.settimeout(10)
                client.sendall(greeting)
                client.recv(1)
                client.close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def found(tmp_path: Path, *sources: str, **stated: object) -> Finding:
    settings = Settings(data_dir=tmp_path, models={"m": tmp_path}, replicas={"m": sources}, **stated)
    [finding] = workers(settings)
    assert finding.remedy or finding.state is State.OK
    return finding


def stated(files: TLSFiles) -> dict[str, Path]:
    return {"certificate": files.certificate, "key": files.key, "ca": files.authority}


def test_workers_that_serve_the_model(tmp_path: Path) -> None:
    with answering(frame(ready())) as one, answering(frame(ready())) as other:
        finding = found(tmp_path, one, other)
    assert (finding.state, finding.what) == (State.OK, "workers of m")
    assert finding.detail.startswith("2 ready")


def test_a_worker_that_is_away(tmp_path: Path) -> None:
    with answering(frame(ready())) as here:
        finding = found(tmp_path, here, REFUSING)
    assert finding.state is State.WARNING, "the others compute its requests"
    assert REFUSING in finding.detail


def test_files_that_differ(tmp_path: Path) -> None:
    with answering(frame(ready())) as one, answering(frame(ready())) as two, answering(frame(ready("2"))) as other:
        finding = found(tmp_path, one, two, other)
    assert finding.state is State.WARNING
    assert other in finding.detail


@pytest.mark.parametrize("greeting", [
    frame(Failed("EngineError", "the engine has ended")),
    frame(ready(), VERSION + 1),
    b"SSH-2.0-OpenSSH_9.2\r\n",
    struct.pack(">IB", 3, VERSION) + b"abc",
])  # fmt: skip
def test_what_is_no_worker(tmp_path: Path, greeting: bytes) -> None:
    with answering(greeting) as address:
        finding = found(tmp_path, address)
    assert finding.state is State.FAILURE
    assert address in finding.detail


def test_a_fleet_file_and_its_absence(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    assert found(tmp_path, f"file://{file}").state is State.FAILURE
    with answering(frame(ready())) as address:
        file.write_text(json.dumps({"workers": [{"address": address}]}))
        assert found(tmp_path, f"file://{file}").state is State.OK


def test_a_worker_on_another_machine_needs_tls(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"workers": [{"address": "tcp://192.0.2.1:9010"}]}))
    for source in ("tcp://192.0.2.1:9010", f"file://{file}"):
        finding = found(tmp_path, source)
        assert finding.state is State.FAILURE
        assert "another machine" in finding.detail


def test_the_models_of_replicas_are_those_of_the_gateway(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, models={"m": tmp_path}, replicas={"other": [REFUSING]})
    [finding] = workers(settings)
    assert finding.state is State.FAILURE


def test_certificates(tmp_path: Path) -> None:
    ours, theirs = make_authority(tmp_path / "ours"), make_authority(tmp_path / "theirs")
    with answering(frame(ready()), ours) as address:
        assert found(tmp_path, address, worker_tls=stated(ours)).state is State.OK
        strange = found(tmp_path, address, worker_tls=stated(theirs))
        assert strange.state is State.FAILURE
        assert "TLS fails" in strange.detail
    with answering(frame(ready())) as plain:
        assert found(tmp_path, plain, worker_tls=stated(ours)).state is State.FAILURE
    missing = found(tmp_path, REFUSING, worker_tls=stated(ours) | {"key": tmp_path / "none"})
    assert missing.state is State.FAILURE


def test_a_grpc_listener(tmp_path: Path) -> None:
    def state(listen: str, tls: object = None) -> State:
        [finding] = grpc(Settings(data_dir=tmp_path, grpc_listen=listen, grpc_tls=tls))
        return finding.state

    files, others = make_authority(tmp_path / "ours"), make_authority(tmp_path / "others")
    pair = {"certificate": files.certificate, "key": files.key}
    assert state(f"127.0.0.1:{free_port()}") is State.OK
    assert state("0.0.0.0:9001") is State.FAILURE, "keys could be read on the way"
    assert state("0.0.0.0:9001", "off") is State.OK
    assert state("0.0.0.0:9001", pair) is State.OK
    assert state("0.0.0.0:9001", pair | {"key": others.key}) is State.FAILURE
    assert state("0.0.0.0:9001", pair | {"key": tmp_path / "none"}) is State.FAILURE


def test_without_them_there_is_no_finding(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert [*workers(settings), *grpc(settings)] == []
