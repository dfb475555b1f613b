"""Errors of prices, invoices and credit. Messages are one line for an operator."""

from gateway.errors import OperatorError


class BillingError(OperatorError):
    """Base class of this package's errors."""


class InvalidPrice(BillingError, ValueError):
    """A price is not valid, or cannot be charged exactly. The message names the field."""


class PriceRefused(BillingError):
    """A price version would change past costs, or starts at the same instant as another one."""


class NoPrice(BillingError):
    """A model has no price at an instant."""


class InvalidMonth(BillingError, ValueError):
    """The value is not a calendar month."""


class InvalidAmount(BillingError, ValueError):
    """The value is not an amount of whole nanodollars in range."""


class InvalidReason(BillingError, ValueError):
    """A reason or a key is empty, too long or unprintable."""


class UnknownInvoice(BillingError):
    """No invoice has that number, or it has no such line."""


class MonthIsFinal(BillingError):
    """The tenant's invoice of that month is final."""


class MonthIsOpen(BillingError):
    """The month, or the grace period for its late events, is not over."""


class BooksDiffer(BillingError):
    """Usage does not add up to what was billed. The message names the first wrong line."""


class CreditTooLarge(BillingError):
    """The amount is more than is left of the invoice or of its line."""


class InvoiceSettled(BillingError):
    """The invoice is paid or void already."""


class IdempotencyConflict(BillingError):
    """The idempotency key belongs to another entry."""
