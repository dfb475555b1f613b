"""Stylesheets, scripts and pictures, from memory, under a path that changes with their content.

`/console/static/<digest>/<name>`: the digest is of all files together, so that a module's relative imports lead to
files of the same edition, and a browser may keep every one for good.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    media_type: str


class StaticFiles:
    """All files of the package's `static` folder, read once."""

    def __init__(self) -> None:
        self._files: Mapping[str, StaticFile] = {
            each.name: StaticFile(each.read_bytes(), MEDIA_TYPES[f".{each.name.rpartition('.')[2]}"])
            for each in sorted(
                files("gateway.management.console").joinpath("static").iterdir(), key=lambda each: each.name
            )
        }
        edition = hashlib.sha256()
        for name, file in self._files.items():
            edition.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
        self.edition = edition.hexdigest()[:16]

    def url(self, name: str) -> str:
        assert name in self._files, f"there is no static file {name}"
        return f"/console/static/{self.edition}/{name}"

    def find(self, edition: str, name: str) -> StaticFile | None:
        """None: no such file, or not of this edition."""
        return self._files.get(name) if edition == self.edition else None
