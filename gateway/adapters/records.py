"""Adapters and their versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """One upload under an adapter's name. `digest`: of its files, by which the engine and the folder of files know it.
    `rank`, `targets`, `parameters`, `bytes`: as in `engine.adapters.source.AdapterFacts`."""

    number: int
    digest: str
    rank: int
    targets: tuple[str, ...]
    parameters: int
    bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Adapter:
    """A tenant's adapter.

    `id`: stable, unique over all tenants and never used again; usage events, prices and invoices name it. `model`: name
    of the served model that it adapts. `weights`: shares of the requests by version number; a version without one gets
    none. `previous`: the weights before the last change, to which a rollback returns; None: there was no change.
    `price_multiplier`: of the base model's price, while the adapter has no price of its own.
    """

    id: str
    tenant_id: str
    name: str
    model: str
    created_at: datetime
    versions: tuple[AdapterVersion, ...]
    weights: Mapping[int, int]
    previous: Mapping[int, int] | None = None
    price_multiplier: Decimal = Decimal(1)

    @property
    def serving(self) -> Mapping[int, int]:
        """The weights above 0 of versions that exist. Not empty."""
        known = {version.number for version in self.versions}
        return {number: weight for number, weight in self.weights.items() if weight > 0 and number in known}

    @property
    def bytes(self) -> int:
        """Size of the files of all versions."""
        return sum(version.bytes for version in self.versions)

    def version(self, number: int) -> AdapterVersion | None:
        """The version with this number."""
        return next((version for version in self.versions if version.number == number), None)


@dataclass(frozen=True, slots=True)
class RoutedAdapter:
    """An adapter and the version of it that a request gets."""

    adapter: Adapter
    version: AdapterVersion

    @property
    def label(self) -> str:
        """The adapter's id with the version's number, for response headers."""
        return f"{self.adapter.id}@{self.version.number}"


@dataclass(frozen=True, slots=True)
class AdapterUpload:
    """An upload in progress. `sizes`, `sha256`: of the two files, as the client stated them. `activate`: whether the
    version gets all requests once it is complete."""

    id: str
    tenant_id: str
    name: str
    model: str
    sizes: Mapping[str, int]
    sha256: Mapping[str, str]
    activate: bool
    created_at: datetime
    expires_at: datetime

    @property
    def bytes(self) -> int:
        """Size of both files."""
        return sum(self.sizes.values())
