"""A uvicorn that lacks what the gateway uses of it is named at the start."""

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import OperatorError
from gateway.http.drain import Drain
from gateway.process import uvicorn_internals
from gateway.process.connection import server_config
from gateway.process.uvicorn_internals import check_uvicorn


async def app(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request")


class RenamedEvent:
    """A request of a uvicorn that calls its `message_event` otherwise."""

    def __init__(self) -> None:
        self.keep_alive = self.disconnected = self.response_started = False
        self.arrived = None


def test_the_installed_one_is_supported() -> None:
    check_uvicorn()


def test_a_method_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HttpToolsProtocol, "_unset_keepalive_if_required")
    with pytest.raises(OperatorError, match=r"no HttpToolsProtocol\._unset_keepalive_if_required\."):
        server_config(app, Drain())


def test_a_method_with_other_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: HttpToolsProtocol, cycle: RequestResponseCycle) -> None:
        raise AssertionError("no request")

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", start)
    with pytest.raises(OperatorError, match=r"no HttpToolsProtocol\._start_asgi_task\(self, cycle, app\)\."):
        server_config(app, Drain())


def test_an_attribute_of_instances_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    internals = uvicorn_internals.INTERNALS
    renamed = {RenamedEvent if each is RequestResponseCycle else each: names for each, names in internals.items()}
    monkeypatch.setattr(uvicorn_internals, "INTERNALS", renamed)
    with pytest.raises(OperatorError, match=rf"uvicorn {uvicorn.__version__} .* no RenamedEvent\.message_event\."):
        server_config(app, Drain())
