"""Versions of a model under one name: a canary release, or an A/B test."""

from collections.abc import Mapping
from hashlib import blake2b
from math import log


def version_of(versions: Mapping[str, float], who: str) -> str:
    """The version for `who`, a session's or tenant's id. It is stable, and over many ids each version has its share by
    weight.

    Weighted rendezvous hashing (Thaler and Ravishankar, 1998): each version draws a number from the hash of itself and
    `who`, and the highest wins. A change of one weight moves the fewest ids possible.
    """
    return max(versions, key=lambda version: _draw(version, who, versions[version]))


def _draw(version: str, who: str, weight: float) -> float:
    """The negative of an exponentially distributed number whose rate is `weight`. The maximum over versions falls to
    each in proportion to its weight."""
    digest = blake2b(f"{version}\0{who}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 0.5) / 2**64
    return log(uniform) / weight if weight > 0 else float("-inf")
