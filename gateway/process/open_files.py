"""Descriptors of the server: each connection takes one."""

import resource

import structlog

FEW_FILES = 4096
"""A limit below this is warned of. Each connection takes one file, the stores some tens."""

_log = structlog.get_logger("turnpike.serve")


def raise_open_files() -> None:
    """Raise the limit to the most that this process may have, and warn if that is low. Its children inherit it.

    The limit that a shell gives, 1,024 mostly, is for programs that use `select`, which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        _log.warning("few connections can be open at once: raise the limit of open files", limit=hard, wanted=FEW_FILES)
