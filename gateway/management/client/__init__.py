"""Where a command's operations run: in a gateway by its admin API, or in the command's own process.

`open_remote` and `open_local` choose; `AdminClient` is the interface of both.
"""

from gateway.management.client.admin_client import AdminClient
from gateway.management.client.opening import open_local, open_remote
from gateway.management.client.transport import Refused, Transport

__all__ = ["AdminClient", "Refused", "Transport", "open_local", "open_remote"]
