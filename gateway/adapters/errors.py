"""Errors of adapters. `param`: the field at fault."""

from gateway.errors import OperatorError


class AdapterError(OperatorError):
    """Base class of this package's errors."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidAdapter(AdapterError):
    """A name, a file or a number of an adapter is not valid."""


class UnsupportedAdapterFiles(AdapterError):
    """The files are no adapter that the base model can be served with."""


class UnknownAdapter(AdapterError):
    """The tenant has no adapter, or no version of it, by that name."""


class UnknownAdapterUpload(AdapterError):
    """The tenant has no upload with that id: it never began, is complete, or has expired."""


class AdapterConflict(AdapterError):
    """The state of the adapter or of its upload does not allow the change."""


class AdapterLimitExceeded(AdapterError):
    """A limit of the tenant on the number or the bytes of its adapters."""
