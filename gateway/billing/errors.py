"""What can go wrong with prices, invoices and credit. Messages are one line for an operator."""

from gateway.errors import OperatorError


class BillingError(OperatorError):
    """Base of this package's errors."""


class InvalidPrice(BillingError, ValueError):
    """A price that cannot be charged exactly, or is not one. The message names the field."""


class PriceRefused(BillingError):
    """A price version that would change what the past cost, or that another one stands in the place of."""


class NoPrice(BillingError):
    """A model has no price at an instant."""


class InvalidMonth(BillingError, ValueError):
    """Not a calendar month."""


class InvalidAmount(BillingError, ValueError):
    """Not an amount of whole nanodollars in range."""


class InvalidReason(BillingError, ValueError):
    """A reason or a key that is empty, too long or unprintable."""


class UnknownInvoice(BillingError):
    """No invoice has that number, or it has no such line."""


class MonthIsFinal(BillingError):
    """The tenant's invoice of that month cannot change any more."""


class MonthIsOpen(BillingError):
    """The month, or the time after it in which late events are waited for, is not over."""


class BooksDiffer(BillingError):
    """Usage does not add up to what it was billed at; the message names the first line that is wrong."""


class CreditTooLarge(BillingError):
    """More than is left of the invoice or of its line."""


class IdempotencyConflict(BillingError):
    """The idempotency key stands for another entry already."""
