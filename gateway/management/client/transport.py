"""The seam between commands and operations."""

from collections.abc import Mapping
from typing import Any, Protocol

from gateway.errors import OperatorError


class Refused(OperatorError):
    """The answer of an operation that refused a request. `code` and `param` are those of the API's error."""

    def __init__(self, message: str, status: int, code: str | None, param: str | None) -> None:
        super().__init__(f"{message[:1].lower()}{message[1:]}".rstrip("."))
        self.status = status
        self.code = code
        self.param = param


class Transport(Protocol):
    """Performs operations by their names. Each call raises `Refused` for an error of the operation, and another
    `OperatorError` if the operation could not be performed."""

    def read(self, name: str, path: Mapping[str, str], query: Mapping[str, str]) -> Any:
        """The JSON value of a read's answer, or its text if it is a document of another type."""
        ...

    def change(self, name: str, path: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        """The JSON value of a change's answer."""
        ...

    def store(self, name: str, path: Mapping[str, str], query: Mapping[str, str], content: bytes) -> Any:
        """The JSON value of the answer to a file's bytes."""
        ...

    def close(self) -> None: ...
