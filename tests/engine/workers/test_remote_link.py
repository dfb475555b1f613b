"""`RemoteLink`: a link does not end before it is closed."""

import asyncio
import threading
from typing import NoReturn

import pytest

from engine.workers.messages import FromWorker, Ready
from engine.workers.remote_link import Address, RemoteLink
from tests.support.waiting import until


class Recorder:
    """Implements `WorkerEvents`."""

    def __init__(self) -> None:
        self.given_up = threading.Event()

    def on_loading(self, model: str, done: int, total: int) -> None: ...

    def on_ready(self, ready: Ready) -> None: ...

    def on_message(self, message: FromWorker) -> None: ...

    def on_ended(self) -> None: ...

    def on_start_failed(self) -> None: ...

    def on_given_up(self, reason: str) -> None:
        self.given_up.set()


class FailingAddress:
    """Counts attempts to connect, of which each fails in a way that is not expected."""

    def __init__(self) -> None:
        self.attempts = 0

    async def connect(self, *_: object) -> NoReturn:
        self.attempts += 1
        raise RuntimeError("not expected")


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a b"])
def test_a_host_that_is_no_name_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r"[Nn]ame"):
        asyncio.run(Address(host, 1).connect(None))


def test_an_unexpected_error_ends_no_link() -> None:
    events, address = Recorder(), FailingAddress()
    link = RemoteLink(address, None, events, step_seconds=1.0)  # type: ignore[arg-type]
    link.start()
    until(lambda: address.attempts >= 2)
    assert not events.given_up.is_set()
    link.close()
    assert events.given_up.wait(5)
