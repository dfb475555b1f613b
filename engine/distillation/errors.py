"""What can be wrong with a request to distil."""


class DistillationError(Exception):
    """The run cannot begin or go on; one line that says why."""
