"""How figures are spelt on pages that show what was used."""

from gateway.billing.money import NANODOLLARS, dollars
from gateway.management.console.charts import Number

_UNITS = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def whole(number: Number) -> str:
    """Exactly: 1,234,567."""
    return f"{int(number):,}"


def short(number: Number) -> str:
    """About so much, for an axis: 1.5M."""
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.4g}{letter}"
    return f"{number:.4g}"


def money(nanodollars: Number) -> str:
    """Exactly, in dollars."""
    return f"${dollars(int(nanodollars))}"


def short_money(nanodollars: Number) -> str:
    """About so much, for an axis."""
    return f"${nanodollars / NANODOLLARS:.4g}"


def duration(milliseconds: float | None) -> str:
    """So that it can be told at a glance: 40 µs, 830 ms, 1.24 s, 3 min 20 s."""
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


def percent(part: float, of: float) -> str:
    """A share; a dash where there is nothing to have a share of."""
    return f"{100 * part / of:.1f} %" if of else "–"
