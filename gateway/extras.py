"""Optional parts of the installation: the extras of `pyproject.toml`, and the error for a missing one."""

from importlib.util import find_spec
from typing import Literal

from gateway.errors import OperatorError

Extra = Literal["embedded", "clickhouse", "kafka", "postgres", "redis", "distill", "bench", "grpc", "kvdisk", "ray"]

_MODULES: dict[Extra, tuple[str, ...]] = {
    "embedded": ("chdb", "clickhouse_connect"),
    "clickhouse": ("clickhouse_connect",),
    "kafka": ("kafka",),
    "postgres": ("asyncpg",),
    "redis": ("redis",),
    "distill": ("torch",),
    "bench": ("aiohttp",),
    "grpc": ("grpc", "grpc_health", "grpc_reflection"),
    "kvdisk": ("cryptography",),
    "ray": ("ray",),
}


class MissingExtra(OperatorError):
    """A setting or a command needs an extra that is not installed."""


def is_installed(extra: Extra) -> bool:
    """Whether the extra's packages can be imported. Imports none of them."""
    return all(find_spec(module) is not None for module in _MODULES[extra])


def require(extra: Extra, purpose: str) -> None:
    """Check that an extra is installed. `purpose`: what needs it, as the subject of the message.

    Raises:
        MissingExtra: it is not.
    """
    if not is_installed(extra):
        raise MissingExtra(f"{purpose} needs the extra '{extra}': {install(extra)}")


def install(extra: Extra) -> str:
    """The command that installs an extra."""
    return f"pip install 'turnpike[{extra}]'"
