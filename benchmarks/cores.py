"""One core for whoever measures, the others for what is measured: neither is to be slowed down by the other."""

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
        """What is started in the block has the servers' cores; behind it, this process has its own."""
        os.sched_setaffinity(0, self._others)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._own)
