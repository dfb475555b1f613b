"""Policies for sessions that outgrow their window."""

from enum import StrEnum


class SessionWindow(StrEnum):
    """The tenant's policy for its oldest turns. `sliding` drops them; `summary` replaces them by a model's summary, at
    the tenant's cost."""

    SLIDING = "sliding"
    SUMMARY = "summary"


class Cut(StrEnum):
    """How a conversation was cut to its window. `summary_failed`: the policy is `summary`, but no summary was
    written."""

    SLIDING = "sliding"
    SUMMARY = "summary"
    SUMMARY_FAILED = "summary_failed"
