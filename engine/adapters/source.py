"""The name of an adapter in the engine, and what is known of it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AdapterSource:
    """An adapter and where its files are.

    `digest`: sha256 in hexadecimal over its config and weights, by which the engine knows it: files of another content
    are another adapter, and equal uploads share a slot and the prefix cache of a tenant. `folder`: a PEFT folder, read
    when a request needs it and it has no slot.
    """

    digest: str
    folder: Path


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """Facts of an adapter, found by checking its files.

    `rank`: the largest of its modules. `targets`: names of the modules that it changes, sorted. `parameters`: numbers
    in its weights. `bytes`: of its files. `base_model`: as its config states it; empty if it does not.
    """

    digest: str
    rank: int
    targets: tuple[str, ...]
    parameters: int
    bytes: int
    base_model: str
