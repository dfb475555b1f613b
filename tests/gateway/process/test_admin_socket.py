"""The Unix socket of a data directory: who may connect, which gateway has it, and paths of any length."""

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.common.unix_socket import MAX_PATH_BYTES, SOCKET_NAME, connect, peer_uid
from gateway.http.errors import APIError
from gateway.management.http.peers import PEER_UID, PeerAuthentication
from gateway.management.operations.roles import Administrator, Role
from gateway.process.admin_socket import AdminSocket


@pytest.fixture(params=["short", "long"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose socket's path fits into `sun_path`, and one whose does not."""
    if request.param == "short":
        return tmp_path / "d"
    folder = tmp_path / ("d" * 60) / ("e" * 60)
    assert len(os.fsencode(folder / SOCKET_NAME)) > MAX_PATH_BYTES
    return folder


@pytest.fixture
def bound(data_dir: Path) -> Iterator[AdminSocket]:
    admin_socket = AdminSocket.bind(data_dir)
    assert admin_socket is not None
    yield admin_socket
    admin_socket.close()


def listening(admin_socket: AdminSocket) -> None:
    admin_socket._listener.listen()


def test_only_the_owner_connects(bound: AdminSocket, data_dir: Path) -> None:
    assert stat.S_IMODE((data_dir / SOCKET_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    listening(bound)
    client = connect(data_dir / SOCKET_NAME, 5)
    assert client is not None
    with client:
        assert peer_uid(client) == os.getuid()


def test_the_file_goes_with_the_gateway(bound: AdminSocket, data_dir: Path) -> None:
    bound.close()
    bound.close()
    assert not (data_dir / SOCKET_NAME).exists()
    assert connect(data_dir / SOCKET_NAME, 5) is None


def test_one_gateway_has_it(bound: AdminSocket, data_dir: Path) -> None:
    listening(bound)
    assert AdminSocket.bind(data_dir) is None
    client = connect(data_dir / SOCKET_NAME, 5)
    assert client is not None
    client.close()


def test_a_former_gateways_file_is_replaced(data_dir: Path) -> None:
    former = AdminSocket.bind(data_dir)
    assert former is not None
    former._listener.close()
    former._lock.close()  # as the kernel does for a process that was killed
    assert connect(data_dir / SOCKET_NAME, 5) is None
    again = AdminSocket.bind(data_dir)
    assert again is not None
    again.close()


def test_a_folder_that_takes_no_socket_is_served_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert AdminSocket.bind(tmp_path / "file") is None


def test_a_file_that_is_no_socket_is_no_gateway(tmp_path: Path) -> None:
    assert connect(tmp_path / "absent", 5) is None
    assert connect(tmp_path / "absent" / "deeper", 5) is None
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed"))
    assert connect(tmp_path / "closed", 5) is None


class RecordingAdmin:
    """In the place of the admin API: remembers in whose name it was asked."""

    def __init__(self) -> None:
        self.served: list[Administrator] = []

    async def serve(self, administrator: Administrator, *_: Any) -> None:
        self.served.append(administrator)


@pytest.mark.parametrize("uid", [4711, 0])
def test_the_owner_and_root_are_administrators(uid: int) -> None:
    admin = RecordingAdmin()
    asyncio.run(PeerAuthentication(admin, 4711)({PEER_UID: uid}, None, None))  # type: ignore[arg-type]
    (administrator,) = admin.served
    assert administrator.role is Role.ADMIN
    assert administrator.key_id == f"command-line:{'root' if uid == 0 else uid}"


@pytest.mark.parametrize("scope", [{PEER_UID: 4712}, {PEER_UID: -1}, {}])
def test_any_other_user_is_refused(scope: dict[str, int]) -> None:
    admin = RecordingAdmin()
    with pytest.raises(APIError) as refused:
        asyncio.run(PeerAuthentication(admin, 4711)(scope, None, None))  # type: ignore[arg-type]
    assert (refused.value.status, refused.value.code) == (403, "user_not_allowed")
    assert not admin.served
