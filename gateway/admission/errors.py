"""The error of a request that is not admitted."""

from gateway.admission.model import HoldRefusal, Measure, Scope
from gateway.tenancy.limits import ScopeKind

_SCOPE_WORDS = {
    ScopeKind.KEY: "this API key",
    ScopeKind.TENANT: "this account",
    ScopeKind.MODEL: "this model",
}
_MEASURE_WORDS = {
    Measure.REQUESTS_PER_MINUTE: "requests per minute",
    Measure.TOKENS_PER_MINUTE: "tokens per minute",
    Measure.TOKENS_PER_DAY: "tokens per day",
    Measure.CONCURRENT: "concurrent requests",
    Measure.NANODOLLARS_PER_MONTH: "dollars per month",
    Measure.CREDIT_NANODOLLARS: "credit",
}


def in_words(scope: Scope) -> str:
    """Description of a limit for a client, such as `tokens per day of this account`."""
    return f"{_MEASURE_WORDS[scope.measure]} of {_SCOPE_WORDS[scope.kind]}"


class QuotaExceeded(Exception):
    """A limit has no room for the request. The message is for the client.

    `code`: `insufficient_quota` for money, `request_exceeds_limit` if waiting cannot help, otherwise
    `rate_limit_exceeded`. `retry_after_ms`: as in `HoldRefusal`.
    """

    def __init__(self, refusal: HoldRefusal) -> None:
        self.refusal = refusal
        self.scope = refusal.quota.scope
        self.limit = refusal.quota.limit
        self.retry_after_ms = refusal.retry_after_ms
        self.states = refusal.states
        where = _SCOPE_WORDS[self.scope.kind]
        if self.scope.measure is Measure.CREDIT_NANODOLLARS:
            self.code = "insufficient_quota"
            message = f"The credit of {where} leaves no room for this request."
        elif self.scope.measure is Measure.NANODOLLARS_PER_MONTH:
            self.code = "insufficient_quota"
            message = f"The spending limit of {where} for this month leaves no room for this request."
        elif self.retry_after_ms is None:
            self.code = "request_exceeds_limit"
            message = f"This request alone is more than the limit of {where}: {self._what()}."
        else:
            self.code = "rate_limit_exceeded"
            message = f"The limit of {where} is reached: {self._what()}."
        super().__init__(message)

    def _what(self) -> str:
        return f"{self.limit} {_MEASURE_WORDS[self.scope.measure]}"
