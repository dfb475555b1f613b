"""What becomes of the oldest turns of a session that outgrows its window."""

from enum import StrEnum


class SessionWindow(StrEnum):
    """The tenant's choice. `summary`: a model writes down what was said in them, at the tenant's cost."""

    SLIDING = "sliding"
    SUMMARY = "summary"
