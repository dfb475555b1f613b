"""Reads what `turnpike serve --demo` prints, as its user does."""

import re
from collections.abc import Iterable

LAST = "reset "
"""Start of the banner's last line."""


def read_banner(lines: Iterable[str]) -> str:
    """The lines up to the banner's last one.

    Raises:
        EOFError: they ended before it.
    """
    banner = ""
    for line in lines:
        banner += line
        if line.startswith(LAST):
            return banner
    raise EOFError(banner)


def commands_of(banner: str) -> str:
    """The block to paste into a shell."""
    return banner[banner.index("export ") :].partition("\n\n")[0]


def key_of(banner: str) -> str:
    found = re.search(r"^export TURNPIKE_KEY=(tp-\S+)$", banner, re.MULTILINE)
    assert found is not None
    return found[1]
