"""Errors of a distillation run."""


class DistillationError(Exception):
    """The run cannot start or continue; the message is one line."""
