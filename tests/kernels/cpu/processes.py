"""Processes that a test makes."""

import os
import warnings
from collections.abc import Callable


def exit_code_of_fork(call: Callable[[], int]) -> int:
    """Exit code of a call in a forked child of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        code = 255
        try:
            code = call()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
