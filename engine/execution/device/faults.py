"""Translates errors of torch, CUDA and Triton to those of the engine."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import DeviceLost, OutOfDeviceMemory

_OF_TRITON = "Triton Error [CUDA]"
"""Prefix of what Triton's launcher raises, as a plain RuntimeError: the driver's result of a launch, or of an earlier
kernel that broke the context."""
_OUT_OF_MEMORY = "out of memory"


@contextmanager
def device_errors() -> Iterator[None]:
    """Around what uses the device.

    Raises:
        OutOfDeviceMemory: there is no room; the device works on.
        DeviceLost: the device answers nothing more in this process.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfDeviceMemory(str(error)) from error
    except torch.AcceleratorError as error:
        raise DeviceLost(str(error)) from error
    except RuntimeError as error:
        if _OF_TRITON not in str(error):
            raise
        kind = OutOfDeviceMemory if _OUT_OF_MEMORY in str(error) else DeviceLost
        raise kind(str(error)) from error
