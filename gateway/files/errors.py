"""Errors of files."""

from gateway.errors import OperatorError


class FileError(OperatorError):
    """Base class of this package's errors."""


class UnknownFile(FileError):
    """The tenant has no file with that id, or it has expired."""


class FileLimitExceeded(FileError):
    """A limit of the tenant on the number or the bytes of its files."""


class FileStoreFull(FileError):
    """The disk of the files has no room."""


class FileStoreUnavailable(FileError):
    """The contents of files cannot be read or written."""
