"""Errors of batches."""

from gateway.errors import OperatorError


class BatchError(OperatorError):
    """Base class of this package's errors."""


class UnknownBatch(BatchError):
    """The tenant has no batch with that id."""


class BatchConflict(BatchError):
    """The state of the batch does not allow the change."""


class TooManyBatches(BatchError):
    """The tenant has as many batches that have not ended as it may have."""


class BatchTaken(BatchError):
    """Another process runs the batch."""
