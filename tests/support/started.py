"""Servers of fixtures."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from tests.support.servers import ServerMissing

Server = TypeVar("Server")


def started(running: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Yield a server for a fixture, or skip its tests where the server is not installed."""
    try:
        with running() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))
