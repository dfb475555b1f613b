"""The memory of this machine that is free."""

import os


def available_bytes() -> int:
    """Bytes that processes could still take."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
