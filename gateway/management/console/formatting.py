"""Formatting of numbers, money, durations and shares for pages."""

from collections.abc import Sequence
from datetime import datetime

from gateway.billing.money import NANODOLLARS, dollars
from gateway.management.console.charts import Number

_UNITS = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def whole(number: Number) -> str:
    """The exact number with separators, as in 1,234,567."""
    return f"{int(number):,}"


def short(number: Number) -> str:
    """A rounded number for an axis, as in 1.5M."""
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.4g}{letter}"
    return f"{number:.4g}"


def money(nanodollars: Number) -> str:
    """The exact amount in dollars."""
    return f"${dollars(int(nanodollars))}"


def micro_dollars(nanodollars: int) -> str:
    """An amount in dollars with six decimals, half away from zero, for a column. A smaller one is marked as such."""
    millionths = (abs(nanodollars) + 500) // 1000
    if nanodollars and not millionths:
        return "<$0.000001" if nanodollars > 0 else ">-$0.000001"
    return f"{'-' if nanodollars < 0 else ''}${millionths // 10**6:,}.{millionths % 10**6:06}"


def short_money(nanodollars: Number) -> str:
    """A rounded amount for an axis."""
    return f"${nanodollars / NANODOLLARS:.4g}"


def duration(milliseconds: float | None) -> str:
    """A duration in the unit that suits its size: 40 µs, 830 ms, 1.24 s, 3 min 20 s."""
    if milliseconds is None:
        return "–"
    if 0 < milliseconds < 1:
        return f"{max(1, round(milliseconds * 1000))} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.3g} s"
    minutes, rest_ms = divmod(round(milliseconds), 60_000)
    return f"{minutes} min {rest_ms // 1000} s"


def aligned(amounts: Sequence[str]) -> list[str]:
    """Decimal texts of a column with the same number of decimals: as many as the longest has."""
    decimals = max((len(amount.partition(".")[2]) for amount in amounts), default=0)
    return [
        whole + ("." + fraction.ljust(decimals, "0") if decimals else "")
        for whole, _, fraction in (amount.partition(".") for amount in amounts)
    ]


def gibibytes(count: int) -> str:
    """Bytes as 1.24 GiB, or as MiB below a tenth of that."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"


def percent(part: float, of: float) -> str:
    """A share in percent; a dash if the whole is 0."""
    return f"{100 * part / of:.1f} %" if of else "–"


def ago(moment: str, now: datetime) -> str:
    """How long ago an RFC 3339 timestamp was: 12 s ago, 3 min ago, 5 h ago, 2 days ago. `console.js` has the same."""
    seconds = int((now - datetime.fromisoformat(moment)).total_seconds())
    if seconds < 1:
        return "now"
    for length_s, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if seconds < 120 * length_s:
            return f"{seconds // length_s} {unit} ago"
    return f"{seconds // 86_400} days ago"
