"""A tenant's policy for sessions that exceed their window."""

from typing import Any

from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Route
from gateway.management.operations.schema import Choice, Record, answer, nullable, optional
from gateway.sessions.policy import SessionWindow
from gateway.tenancy.queries import require_tenant
from gateway.tenancy.session_windows import read_session_windows, write_session_window

_WINDOW = Choice(tuple(SessionWindow))
SESSION_WINDOW = answer(
    "SessionWindow",
    {"window": nullable(_WINDOW, "What becomes of the oldest turns; null: what the gateway's settings say.")},
)


class SessionWindows:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def read(self, call: OperationInput) -> Any:
        tenant_id = call.path["tenant_id"]
        async with self._context.reading() as connection:
            await require_tenant(connection, tenant_id)
            return _wire((await read_session_windows(connection, [tenant_id])).get(tenant_id))

    async def replace(self, change: Change, call: OperationInput) -> Any:
        body: dict[str, Any] = call.body
        tenant = await self._context.tenants(change).tenant(call.path["tenant_id"])
        before = (await read_session_windows(change.connection, [tenant.id])).get(tenant.id)
        after = None if body["window"] is None else SessionWindow(body["window"])
        await write_session_window(change.connection, tenant.id, after)
        told = [_wire(before), _wire(after)]
        change.record("replace", "session_window", tenant.id, tenant_id=tenant.id, before=told[0], after=told[1])
        return told[1]


def _wire(window: SessionWindow | None) -> dict[str, Any]:
    return {"window": None if window is None else window.value}


def session_window_routes(context: AdminContext) -> list[Route]:
    windows = SessionWindows(context)
    path = "/tenants/{tenant_id}/session-window"
    return [
        Route(
            name="readSessionWindow",
            about="Read what becomes of the oldest turns of a tenant's sessions.",
            method="GET",
            path=path,
            allowed=READERS,
            answer=SESSION_WINDOW,
            read=windows.read,
        ),
        Route(
            name="replaceSessionWindow",
            about="State what becomes of the oldest turns of a tenant's sessions: sliding drops them, summary has a "
            "model sum them up at the tenant's cost. Gateways follow within 5 seconds.",
            method="PUT",
            path=path,
            allowed=ADMINS,
            body=Record("NewSessionWindow", dict, {"window": optional(_WINDOW, "Left out: what the settings say.")}),
            answer=SESSION_WINDOW,
            write=windows.replace,
        ),
    ]
