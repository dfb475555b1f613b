"""What becomes of the oldest turns of a session that outgrows its window."""

from enum import StrEnum


class SessionWindow(StrEnum):
    """The tenant's choice. `summary`: a model writes down what was said in them, at the tenant's cost."""

    SLIDING = "sliding"
    SUMMARY = "summary"


class Cut(StrEnum):
    """How a conversation was cut to its window. `summary_failed`: there was to be a summary, and is none."""

    SLIDING = "sliding"
    SUMMARY = "summary"
    SUMMARY_FAILED = "summary_failed"
