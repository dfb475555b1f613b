"""One name for several versions of a model: a canary beside the proven one, or an A/B test."""

from collections.abc import Mapping
from hashlib import blake2b
from math import log


def version_of(versions: Mapping[str, float], who: str) -> str:
    """The version that `who` (a session or a tenant) gets: always the same, and over many each by its weight.

    Weighted rendezvous hashing: each version draws a number from the hash of itself and `who`, and the highest wins.
    Where a weight changes, only those change versions who have to.
    """
    return max(versions, key=lambda version: _draw(version, who, versions[version]))


def _draw(version: str, who: str, weight: float) -> float:
    """Exponentially distributed at the rate of the weight, as a negative number: the least waiting time is the
    greatest of them, and falls to each version as often as its weight says."""
    digest = blake2b(f"{version}\0{who}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return log(uniform) / weight if weight > 0 else float("-inf")
