"""The keyboard, a key at a time."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Tells of each key, on the running loop; nothing where standard input is no terminal. It is left as it was."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="ignore"):
            pressed(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
