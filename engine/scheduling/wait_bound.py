"""The rule by which a request is refused for its predicted wait."""

PREDICTION_MARGIN = 1.25
"""Allowed error of a prediction: a request is admitted if this multiple of its predicted wait is within the bound."""


def is_admitted(first_token_ns: int, drain_ns: int, max_wait_ns: int) -> bool:
    """Whether a request is admitted with these predicted times until its first token, and until all requests that wait
    in its class have theirs, by a class with this bound.

    With an empty queue it is, however long its own prompt takes, as retrying later would not help.
    """
    return drain_ns == 0 or PREDICTION_MARGIN * first_token_ns <= max_wait_ns
