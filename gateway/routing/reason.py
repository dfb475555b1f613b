"""Why a request was routed to its model: a closed set for headers, metrics and usage."""

from enum import StrEnum


class RouteReason(StrEnum):
    """One per request. The first three are of a named model, or of a key that is limited to one model of the pair. The
    others are decisions of routing, except `SESSION_SUMMARY`, which has no client's request."""

    EXPLICIT = "explicit"
    """The client named the model or an alias of it."""
    VERSION = "version"
    """The client named a model with several versions, and its tenant or session has this one."""
    ONLY_ALLOWED = "only_allowed"
    """The key may not use the other model of the pair."""
    COMPLEXITY_SMALL = "complexity_small"
    COMPLEXITY_LARGE = "complexity_large"
    CONTEXT = "context"
    """The small model's context window is too short."""
    SATURATED = "saturated"
    """The other model's queue is too long."""
    BUDGET = "budget"
    """The remaining budget is too small for the large model."""
    CASCADE_ACCEPTED = "cascade_accepted"
    """The small model answered with enough confidence."""
    CASCADE_ESCALATED = "cascade_escalated"
    """The small model answered without enough confidence, so the large one answered again."""
    SESSION_SUMMARY = "session_summary"
    """The gateway summarised the oldest turns of a session."""
