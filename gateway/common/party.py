"""Names and addresses on an invoice: of the issuer, and of a tenant that it is billed to."""

from dataclasses import dataclass

MAX_NAME_CHARS = 200
MAX_ADDRESS_CHARS = 500
MAX_ADDRESS_LINES = 8
MAX_TAX_ID_CHARS = 64


@dataclass(frozen=True, slots=True)
class Party:
    """Who issues an invoice, or to whom it is billed. An empty field is not stated. `address`: lines, separated by line
    feeds.

    Raises:
        ValueError: a field is too long or unprintable. The message names the field.
    """

    name: str = ""
    address: str = ""
    tax_id: str = ""

    def __post_init__(self) -> None:
        lines = self.address.split("\n")
        fields = (
            ("name", self.name, MAX_NAME_CHARS, [self.name]),
            ("address", self.address, MAX_ADDRESS_CHARS, lines),
            ("tax_id", self.tax_id, MAX_TAX_ID_CHARS, [self.tax_id]),
        )
        for name, text, most, parts in fields:
            if len(text) > most or not all(part.isprintable() for part in parts):
                raise ValueError(f"{name} has at most {most} printable characters")
        if len(lines) > MAX_ADDRESS_LINES:
            raise ValueError(f"address has at most {MAX_ADDRESS_LINES} lines")

    @property
    def address_lines(self) -> tuple[str, ...]:
        """The lines of the address."""
        return tuple(line for line in self.address.split("\n") if line)


NO_PARTY = Party()
