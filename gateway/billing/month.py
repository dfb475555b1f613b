"""The calendar month, UTC: the period of an invoice."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from gateway.billing.errors import InvalidMonth

_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """A calendar month: from `start` to before `end`."""

    year: int
    number: int

    def __post_init__(self) -> None:
        if not (2000 <= self.year <= 9998 and 1 <= self.number <= 12):
            raise InvalidMonth("a month is given as YYYY-MM, from the year 2000 on")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The month of a text.

        Raises:
            InvalidMonth: not YYYY-MM.
        """
        match = _MONTH.fullmatch(text)
        if match is None or not text.isascii():
            raise InvalidMonth("a month is given as YYYY-MM, from the year 2000 on")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of(cls, instant: datetime) -> Self:
        """The month of an instant."""
        instant = instant.astimezone(UTC)
        return cls(instant.year, instant.month)

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    @property
    def start(self) -> datetime:
        """The first instant of the month."""
        return datetime(self.year, self.number, 1, tzinfo=UTC)

    @property
    def end(self) -> datetime:
        """The first instant of the next month."""
        return self.plus(1).start

    def plus(self, months: int) -> "Month":
        """The month this many months later or, below 0, earlier; at the earliest January 2000."""
        index = max(self.year * 12 + self.number - 1 + months, 2000 * 12)
        return Month(index // 12, index % 12 + 1)
