"""Names of uvicorn that `connection` and `server` use beyond its documented interface, and a check that they exist.

uvicorn has no interface for bounds on heads, pipelining and unread bytes, so `Connection` extends its protocol class. A
release may rename what it uses without notice. The check finds that at the start, not in the first request.
`tests/gateway/process/test_newest_uvicorn.py` finds changes of meaning.
"""

import dis
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.errors import OperatorError

INTERNALS: Mapping[type, frozenset[str]] = {
    HttpToolsProtocol: frozenset(
        {
            *("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing", "shutdown"),
            *("on_message_begin", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
            *("on_response_complete", "_start_asgi_task", "_unset_keepalive_if_required"),
            *("parser", "url", "headers", "cycle", "pipeline", "flow", "transport", "loop", "server_state"),
        }
    ),
    RequestResponseCycle: frozenset({"keep_alive", "disconnected", "message_event", "response_started"}),
    FlowControl: frozenset({"write_paused", "resume_reading"}),
    ServerState: frozenset({"tasks", "connections", "default_headers"}),
    uvicorn.Server: frozenset(
        {
            *("startup", "shutdown", "on_tick", "capture_signals"),
            *("servers", "lifespan", "server_state", "should_exit"),
        }
    ),
}
"""The names by class: methods, and attributes of instances."""

_START_PARAMETERS = ["self", "cycle", "app"]


def check_uvicorn() -> None:
    """Check the installed uvicorn.

    Raises:
        OperatorError: it lacks a name that the gateway uses.
    """
    missing = [f"{owner.__name__}.{name}" for owner, names in INTERNALS.items() for name in names - _names(owner)]
    if not missing and [*inspect.signature(HttpToolsProtocol._start_asgi_task).parameters] != _START_PARAMETERS:
        missing = [f"HttpToolsProtocol._start_asgi_task({', '.join(_START_PARAMETERS)})"]
    if missing:
        raise OperatorError(
            f"uvicorn {uvicorn.__version__} is not supported: it has no {', '.join(sorted(missing))}. Install the "
            "version in requirements.lock"
        )


def _names(owner: type) -> set[str]:
    """Attributes of a class, and those that its methods assign."""
    instructions = (each for method in _methods(owner) for each in dis.get_instructions(method))
    return {*dir(owner), *(each.argval for each in instructions if each.opname == "STORE_ATTR")}


def _methods(owner: type) -> Iterator[FunctionType]:
    for base in inspect.getmro(owner):
        yield from (member for member in vars(base).values() if isinstance(member, FunctionType))
