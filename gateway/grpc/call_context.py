"""Parts of a call's context: metadata, deadline, caller."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]

MAX_DEADLINE_SECONDS = 365 * 86400.0
"""A deadline that is further away is none."""

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def metadata_of(context: Context) -> Metadata:
    """The metadata that the client sent."""
    return tuple((str(name), value) for name, value in context.invocation_metadata() or ())


def remaining_seconds(context: Context) -> float | None:
    """Time to the client's deadline; None: it has none."""
    seconds = context.time_remaining()
    return None if seconds is None or seconds > MAX_DEADLINE_SECONDS else max(0.0, seconds)


def caller_of(context: Context) -> str:
    """Who calls: the client's certificate, or without TLS its connection."""
    certificate = context.auth_context().get("x509_pem_cert")
    return bytes(next(iter(certificate))).decode() if certificate else str(context.peer())


async def write_within(context: Context, message: object, seconds: float) -> None:
    """Send a message on a stream.

    Raises:
        CancelledError: the client has gone, or has taken no message for `seconds`. A status could not be sent either;
            gRPC resets the stream of a handler that is cancelled.
    """
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except (TimeoutError, grpc.aio.InternalError):
        raise asyncio.CancelledError("the client takes no messages") from None


@contextmanager
def at_deadline(context: Context, act: Callable[[], None]) -> Iterator[None]:
    """A block in which `act` is called at the client's deadline."""
    seconds = remaining_seconds(context)
    timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, act)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
