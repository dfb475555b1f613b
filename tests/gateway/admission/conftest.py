import pytest

from gateway.admission import LimitStore, MemoryStore
from tests.gateway.admission.stores import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> LimitStore:
    return MemoryStore(clock)
