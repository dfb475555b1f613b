"""Where the program draws at random, in a simulation: from its seed."""

import os
import random as standard
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """For the time of the block `os.urandom`, `secrets`, `uuid4` and the `random` module follow the seed."""
    source = Random(f"drawn-{seed}")
    urandom, uuid_urandom, state = os.urandom, standard._urandom, standard.getstate()  # type: ignore[attr-defined]
    os.urandom = source.randbytes
    standard._urandom = source.randbytes  # type: ignore[attr-defined]
    standard.seed(f"module-{seed}")
    assert uuid.uuid4().version == 4
    try:
        yield
    finally:
        os.urandom = urandom
        standard._urandom = uuid_urandom  # type: ignore[attr-defined]
        standard.setstate(state)
