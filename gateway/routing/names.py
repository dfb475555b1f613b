"""Names that a request may use: served models, names with versions, a tenant's adapters and aliases, and `auto` for a
pair."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.adapters.records import Adapter
from gateway.routing.versions import version_of

AUTO = "auto"
"""Name of the first pair in the settings. `auto:LARGE` names the pair of that large model."""


AdapterOf = Callable[[str], Adapter | None]
"""The caller's adapter of a name."""


def no_adapter(name: str) -> None:
    """An `AdapterOf` without adapters."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The large and the small model that routing chooses between. Either name may have versions."""

    large: str
    small: str


def is_reserved(name: str) -> bool:
    """Whether the name is reserved for routing, so that no model may have it."""
    return name == AUTO or name.startswith(f"{AUTO}:")


@dataclass(frozen=True, slots=True)
class ModelNames:
    """All names that lead to served models. `small_of`: small model by large model. `versions`: weights of the served
    models by versioned name. `aliases`: further names, for all tenants, of served and versioned names and pairs."""

    served: tuple[str, ...]
    small_of: Mapping[str, str]
    versions: Mapping[str, Mapping[str, float]]
    aliases: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def find(
        self, name: str, aliases: Mapping[str, str], adapter_of: AdapterOf = no_adapter
    ) -> str | Pair | Adapter | None:
        """The target of a name: a served or versioned name, a pair, a tenant's adapter, or None for an unknown name.

        A model's own name has priority over an adapter, an adapter over an alias, and an alias over `auto`. `aliases`
        and `adapter_of` are a tenant's; its aliases have priority over those of all tenants. Aliases are not resolved
        recursively. An adapter whose base model is not served is unknown.
        """
        if self._is_model(name):
            return name
        if (adapter := self._adapter(name, adapter_of)) is not None:
            return adapter
        name = aliases.get(name) or self.aliases.get(name, name)
        if self._is_model(name):
            return name
        return self._adapter(name, adapter_of) or self._pair(name)

    def version(self, name: str, who: str) -> str:
        """The served model for a served or versioned name. `who`: id that keeps the same version, a session's or a
        tenant's."""
        versions = self.versions.get(name)
        return name if versions is None else version_of(versions, who)

    def smaller(self, name: str) -> str | None:
        """The small model that may stand in for a large model, or for a versioned name that includes one. None: there
        is none."""
        small = self.small_of.get(name)
        if small is None and name in self.versions:
            small = next((self.small_of[version] for version in self.versions[name] if version in self.small_of), None)
        return small

    def models_of(self, name: str) -> tuple[str, ...]:
        """Served models that may answer under a served or versioned name."""
        return tuple(self.versions.get(name, (name,)))

    def all_names(self, aliases: Iterable[str]) -> Iterator[str]:
        """All names for a tenant with these aliases, each once, served models first."""
        yield from self.served
        yield from (name for name in self.versions if name not in self.served)
        if self.small_of:
            yield AUTO
        if len(self.small_of) > 1:
            yield from (f"{AUTO}:{large}" for large in self.small_of)
        further = dict.fromkeys((*aliases, *self.aliases))
        yield from (alias for alias in further if not (self._is_model(alias) or self._pair(alias)))

    def is_taken(self, name: str) -> bool:
        """Whether a name means something for all tenants, so that no adapter may have it."""
        return is_reserved(name) or self.find(name, {}) is not None

    def _adapter(self, name: str, adapter_of: AdapterOf) -> Adapter | None:
        adapter = adapter_of(name)
        return adapter if adapter is not None and adapter.model in self.served else None

    def _is_model(self, name: str) -> bool:
        return name in self.served or name in self.versions

    def _pair(self, name: str) -> Pair | None:
        if not (self.small_of and is_reserved(name)):
            return None
        large = next(iter(self.small_of)) if name == AUTO else name.removeprefix(f"{AUTO}:")
        small = self.small_of.get(large)
        return None if small is None else Pair(large, small)
