"""URLs of stores, which may name several hosts.

`urllib.parse.urlsplit` of some Pythons (Debian's 3.11.2) refuses brackets after a comma, as in `kafka://one,[::1]:5`.
"""

from typing import NamedTuple
from urllib.parse import urlsplit


class StoreUrl(NamedTuple):
    """`user` and `password` are as written: percent-encoded. `hosts`: each with its port, if that is stated."""

    scheme: str
    user: str
    password: str
    hosts: tuple[str, ...]
    path: str
    query: str

    @classmethod
    def split(cls, url: str) -> "StoreUrl":
        """The parts of a URL; all are empty that it does not have."""
        before, separator, after = url.partition("://")
        end = min((at for at in map(after.find, "/?#") if at >= 0), default=len(after))
        authority = after[:end] if separator else ""
        rest = urlsplit(f"{before}://host{after[end:]}" if separator else url)
        credentials, _, hosts = authority.rpartition("@")
        user, _, password = credentials.partition(":")
        return cls(rest.scheme, user, password, tuple(hosts.split(",")) if hosts else (), rest.path, rest.query)
