"""Why the model that answered was the one: a closed list, for headers, metrics and usage."""

from enum import StrEnum


class RouteReason(StrEnum):
    """One a request. The first three are of a model that was named, or of a key that may use no other; the rest are of
    a choice that routing made, but for the last, which is of no client's request."""

    EXPLICIT = "explicit"
    """The client named it, or an alias of it."""
    VERSION = "version"
    """The client named what has several versions: this one is its tenant's."""
    ONLY_ALLOWED = "only_allowed"
    """The other of the pair is not for this key."""
    COMPLEXITY_SMALL = "complexity_small"
    COMPLEXITY_LARGE = "complexity_large"
    CONTEXT = "context"
    """The small model's window is too short."""
    SATURATED = "saturated"
    """The other one's queue is too long."""
    BUDGET = "budget"
    """What is left of a budget is too little for the large model."""
    CASCADE_ACCEPTED = "cascade_accepted"
    """The small model answered and was sure of it."""
    CASCADE_ESCALATED = "cascade_escalated"
    """The small model answered first and was not."""
    SESSION_SUMMARY = "session_summary"
    """No client asked: the oldest turns of a session were summed up."""
