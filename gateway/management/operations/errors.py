"""Status, code and field of each typed error."""

from collections.abc import Mapping

from gateway.adapters.errors import (
    AdapterConflict,
    AdapterError,
    AdapterLimitExceeded,
    InvalidAdapter,
    UnknownAdapter,
    UnknownAdapterUpload,
    UnsupportedAdapterFiles,
)
from gateway.analytics import AnalyticsAway
from gateway.billing.errors import (
    BooksDiffer,
    CreditTooLarge,
    IdempotencyConflict,
    InvalidAmount,
    InvalidMonth,
    InvalidPrice,
    InvalidReason,
    InvoiceSettled,
    MonthIsFinal,
    MonthIsOpen,
    NoPrice,
    PriceRefused,
    UnknownInvoice,
)
from gateway.errors import OperatorError
from gateway.http.errors import SERVER_ERROR, APIError, as_api_error, invalid
from gateway.management.operations.idempotency import HEADER
from gateway.tenancy.errors import (
    InvalidExpiry,
    InvalidGrant,
    InvalidKey,
    InvalidLimit,
    InvalidName,
    KeyNotInUse,
    StoreUnavailable,
    TenantExists,
    UnknownAdminKey,
    UnknownKey,
    UnknownTenant,
)
from gateway.tenancy.policies import InvalidPolicy

_ANSWERS: Mapping[type[OperatorError], tuple[int, str, str | None]] = {
    UnknownTenant: (404, "tenant_not_found", None),
    UnknownKey: (404, "key_not_found", None),
    UnknownAdminKey: (404, "key_not_found", None),
    UnknownInvoice: (404, "invoice_not_found", None),
    InvalidName: (400, "invalid_value", "name"),
    InvalidGrant: (400, "invalid_value", None),
    InvalidLimit: (400, "invalid_value", None),
    InvalidExpiry: (400, "invalid_value", "expires_at"),
    InvalidPrice: (400, "invalid_value", None),
    InvalidMonth: (400, "invalid_value", "month"),
    InvalidAmount: (400, "invalid_value", "nanodollars"),
    InvalidReason: (400, "invalid_value", "reason"),
    TenantExists: (409, "tenant_exists", "name"),
    KeyNotInUse: (409, "key_not_in_use", None),
    PriceRefused: (409, "price_refused", "effective_from"),
    NoPrice: (409, "no_price", None),
    MonthIsFinal: (409, "month_is_final", "month"),
    MonthIsOpen: (409, "month_is_open", "month"),
    BooksDiffer: (409, "books_differ", None),
    InvoiceSettled: (409, "invoice_settled", None),
    CreditTooLarge: (409, "credit_too_large", "nanodollars"),
    IdempotencyConflict: (409, "idempotency_key_reused", HEADER),
    UnknownAdapter: (404, "adapter_not_found", None),
    UnknownAdapterUpload: (404, "upload_not_found", None),
    InvalidAdapter: (400, "invalid_value", None),
    UnsupportedAdapterFiles: (400, "unsupported_adapter", None),
    AdapterConflict: (409, "adapter_conflict", None),
    AdapterLimitExceeded: (409, "adapter_limit_exceeded", None),
}
"""Status, code, and the field at fault where it is always the same."""


def as_admin_error(error: OperatorError) -> APIError | None:
    """The answer to an error of tenancy or billing; None for any other error."""
    if type(error) in _ANSWERS:
        status, code, param = _ANSWERS[type(error)]
        if isinstance(error, AdapterError):
            param = error.param
        message = str(error)
        return APIError(status, f"{message[:1].upper()}{message[1:]}.", param=param, code=code)
    if isinstance(error, InvalidPolicy):
        return invalid(error.param, f"{str(error)[:1].upper()}{str(error)[1:]}.")
    if isinstance(error, InvalidKey):
        return as_api_error(error)
    if isinstance(error, StoreUnavailable):
        return unavailable("The database does not answer.")
    if isinstance(error, AnalyticsAway):
        return unavailable("The store of usage does not answer.")
    return None


def unavailable(what: str) -> APIError:
    """503 with `Retry-After`, for a store that does not answer."""
    return APIError(
        503,
        f"{what} Retry in a few seconds.",
        type=SERVER_ERROR,
        code="service_unavailable",
        headers={"retry-after": "5"},
    )


def not_found() -> APIError:
    return APIError(404, "Unknown request URL.", code="not_found")
