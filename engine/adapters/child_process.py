"""How the processes that read adapters are started."""

import sys
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """The environment of a child process: it imports what this process does, and computes in one thread. It gets no
    secrets."""
    return {"PYTHONPATH": ":".join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
