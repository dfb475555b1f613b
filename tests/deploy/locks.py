"""The locks: the packages that they name, each at one version with its hashes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import ROOT

HERE: Mapping[str, str] = {"python_full_version": "3.11.15", "python_version": "3.11", "sys_platform": "linux"}


@dataclass(frozen=True, slots=True)
class Locked:
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]


def entries(lock: str) -> list[tuple[str, Locked]]:
    text = (ROOT / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        stated, *options = re.split(r"\s+--", line.strip())
        requirement = Requirement(stated)
        (version,) = requirement.specifier
        assert version.operator == "==", line
        hashes = tuple(option.removeprefix("hash=") for option in options)
        assert all(option.startswith("hash=") for option in options), line
        found.append((canonicalize_name(requirement.name), Locked(version.version, requirement.marker, hashes)))
    return found


def here(lock: str) -> dict[str, Locked]:
    """The entries that the image's Python installs."""
    taken = [(name, each) for name, each in entries(lock) if each.marker is None or each.marker.evaluate(dict(HERE))]
    assert len(dict(taken)) == len(taken), "one version of each"
    return dict(taken)
