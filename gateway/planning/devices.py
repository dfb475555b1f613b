"""A device by name, or with numbers of its own."""

from dataclasses import replace

from engine.planning.hardware import DEVICES, Hardware
from engine.planning.origin import Origin
from gateway.errors import OperatorError


def find_device(name: str) -> Hardware:
    """
    Raises:
        OperatorError: no device has this name; the message has those that are known.
    """
    if (device := DEVICES.get(name.lower())) is None:
        known = ", ".join(each.name for each in DEVICES.values())
        raise OperatorError(
            f"--device {name!r} is not one of {known}; or state --memory-gb, --bandwidth-tb-s and --tflops"
        )
    return device


def stated_device(
    name: str | None, memory_gb: float | None, bandwidth_tb_s: float | None, tflops: float | None
) -> Hardware:
    """The device of this name with the stated numbers in place of its own; without a name all three are needed.

    Raises:
        OperatorError: a number is missing or not positive; the message names its option.
    """
    numbers = {"--memory-gb": memory_gb, "--bandwidth-tb-s": bandwidth_tb_s, "--tflops": tflops}
    for option, value in numbers.items():
        if value is not None and not 0 < value < 1e6:
            raise OperatorError(f"{option} must be positive, got {value}")
    if name is None:
        if missing := [option for option, value in numbers.items() if value is None]:
            raise OperatorError(f"{missing[0]} is missing: a device is --device NAME, or all of {', '.join(numbers)}")
        assert memory_gb is not None and bandwidth_tb_s is not None and tflops is not None  # noqa: PT018
        return Hardware(
            name="own numbers",
            memory_bytes=round(1e9 * memory_gb),
            bytes_s=1e12 * bandwidth_tb_s,
            flop_s=1e12 * tflops,
            origin=Origin.STATED,
        )
    device = find_device(name)
    return replace(
        device,
        memory_bytes=device.memory_bytes if memory_gb is None else round(1e9 * memory_gb),
        bytes_s=device.bytes_s if bandwidth_tb_s is None else 1e12 * bandwidth_tb_s,
        flop_s=device.flop_s if tflops is None else 1e12 * tflops,
    )
