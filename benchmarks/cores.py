"""One core for the load generator, the others for the measured servers: neither slows the other down."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


class Cores:
    """Those of this process when it was made, in two parts. On a machine with one core they are the same."""

    def __init__(self) -> None:
        *others, own = sorted(os.sched_getaffinity(0))
        self._own = {own}
        self._others = set(others) or self._own

    @contextmanager
    def of_servers(self) -> Iterator[None]:
        """Processes that start in the block have the servers' cores; after it, this process has its own."""
        os.sched_setaffinity(0, self._others)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._own)
