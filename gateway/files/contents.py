"""Where the bytes of files are: `Contents`, and `LocalContents` in a folder.

    FOLDER/TENANT/FILE_ID      complete files
    FOLDER/uploads/RANDOM      files that arrive or are made

A file is synced and then renamed into place, so one by an id is complete, whatever kills the process. Methods block:
call them on a thread. Every method raises `FileStoreUnavailable` if the store fails, and those that write raise
`FileStoreFull` if it has no room.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from gateway.common.durable_files import sync, write_all
from gateway.files.errors import FileStoreFull, FileStoreUnavailable, UnknownFile
from gateway.files.records import random_text

_UPLOADS = "uploads"
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class NewContent(Protocol):
    """A content that is written from its beginning to its end. `size`: bytes written so far. `sha256`: of them."""

    size: int

    @property
    def sha256(self) -> str: ...

    def write(self, content: bytes) -> None: ...

    def publish(self, tenant_id: str, file_id: str) -> None:
        """Make it the file's content, durably. Replaces a content of the same id."""
        ...

    def discard(self) -> None:
        """Remove it, unless it was published. Idempotent."""
        ...


class Contents(Protocol):
    """The contents of all tenants. Gateways that share a database share it."""

    def create(self, expected_bytes: int = 0) -> NewContent: ...

    def open(self, tenant_id: str, file_id: str) -> BinaryIO:
        """The content, for reading. Raises: UnknownFile."""
        ...

    def delete(self, tenant_id: str, file_id: str) -> None:
        """Remove the content. Idempotent."""
        ...

    def stored(self, older_than_s: float) -> Iterator[tuple[str, str]]:
        """Tenant and id of the contents that were published at least that long ago."""
        ...

    def sweep(self, older_than_s: float) -> int:
        """Remove what ended processes left unpublished for that long. Returns the number of removed contents."""
        ...


class LocalContents:
    """A folder. `min_free_bytes`: of its disk, below which no content is created."""

    def __init__(self, folder: Path, min_free_bytes: int = 0) -> None:
        self.folder = folder
        self._min_free_bytes = min_free_bytes

    def create(self, expected_bytes: int = 0) -> "LocalContent":
        """`expected_bytes`: its size, as far as it is known."""
        with _failing():
            uploads = self.folder / _UPLOADS
            uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
            if shutil.disk_usage(uploads).free < self._min_free_bytes + expected_bytes:
                raise FileStoreFull("the disk of the files is nearly full")
            return LocalContent(self.folder, uploads / random_text(24))

    def open(self, tenant_id: str, file_id: str) -> BinaryIO:
        path = _path(self.folder, tenant_id, file_id)
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise UnknownFile(f"the content of {file_id} is not stored") from None
        except OSError as error:
            raise _unavailable(error) from error

    def delete(self, tenant_id: str, file_id: str) -> None:
        with _failing(), suppress(FileNotFoundError):
            _path(self.folder, tenant_id, file_id).unlink()

    def stored(self, older_than_s: float) -> Iterator[tuple[str, str]]:
        with _failing():
            for folder in _entries(self.folder):
                if folder.name != _UPLOADS and folder.is_dir():
                    for path in _entries(folder):
                        if _age_s(path) >= older_than_s:
                            yield folder.name, path.name

    def sweep(self, older_than_s: float) -> int:
        removed = 0
        with _failing():
            for path in _entries(self.folder / _UPLOADS):
                if _age_s(path) >= older_than_s:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed


class LocalContent:
    """`NewContent` of a folder."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.size = 0
        self._folder = folder
        self._path = path
        self._digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor: int | None = os.open(path, flags, 0o600)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, content: bytes) -> None:
        assert self._descriptor is not None
        with _failing():
            write_all(self._descriptor, content, self.size)
        self._digest.update(content)
        self.size += len(content)

    def publish(self, tenant_id: str, file_id: str) -> None:
        assert self._descriptor is not None
        target = _path(self._folder, tenant_id, file_id)
        with _failing():
            os.fsync(self._descriptor)
            if not target.parent.is_dir():
                target.parent.mkdir(mode=0o700, exist_ok=True)
                sync(self._folder)
            os.rename(self._path, target)
            sync(target.parent)
        self._close()

    def discard(self) -> None:
        if self._descriptor is not None:
            self._close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _path(folder: Path, tenant_id: str, file_id: str) -> Path:
    """Ids are ours; this is the last line of defence against one that would leave the folder."""
    if tenant_id == _UPLOADS or not (_PLAIN.fullmatch(tenant_id) and _PLAIN.fullmatch(file_id)):
        raise UnknownFile("an id of a file has other characters than letters, digits, _ and -")
    return folder / tenant_id / file_id


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextmanager
def _failing() -> Iterator[None]:
    """Turn the errors of a disk into this package's."""
    try:
        yield
    except OSError as error:
        raise _unavailable(error) from error


def _unavailable(error: OSError) -> FileStoreFull | FileStoreUnavailable:
    if error.errno in _FULL:
        return FileStoreFull("the disk of the files is full")
    return FileStoreUnavailable(f"the folder of files cannot be used: {error.strerror}")
