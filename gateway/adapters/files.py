"""The folder of adapters' files.

    FOLDER/DIGEST/adapter_config.json, adapter_model.safetensors     by the digest of their content
    FOLDER/uploads/ID/                                               the same two files, while they arrive

Files are synced and then renamed into place as a folder, so a folder by a digest is complete, whatever kills the
process. What an end in between leaves behind, `sweep` removes. Methods block: call them on a thread.
"""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engine.adapters.source import AdapterSource
from gateway.adapters.errors import AdapterConflict, InvalidAdapter
from gateway.common.durable_files import sync, write_all

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (CONFIG_FILE, WEIGHTS_FILE)
MAX_CONFIG_BYTES = 1024**2

_UPLOADS = "uploads"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READ_BYTES = 1024**2


class AdapterFiles:
    """The folder of a gateway. Replicas share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def source(self, digest: str) -> AdapterSource:
        """An adapter as the engine takes it."""
        return AdapterSource(digest, self.folder / digest)

    def has(self, digest: str) -> bool:
        """Whether the files of a digest are stored."""
        return (self.folder / digest).is_dir()

    def upload_folder(self, upload_id: str) -> Path:
        """The folder of an upload's files."""
        return self.folder / _UPLOADS / upload_id

    def received(self, upload_id: str) -> Mapping[str, int]:
        """Bytes of each file of an upload that are here."""
        folder = self.upload_folder(upload_id)
        return {name: _size(folder / name) for name in FILES}

    def append(self, upload_id: str, name: str, offset: int, size: int, content: bytes) -> int:
        """Append to a file of an upload, whose whole size is `size` bytes. Returns the bytes that are here.

        Raises:
            AdapterConflict: `offset` is not the end of what is here, or another request writes the file.
            InvalidAdapter: the file would be longer than stated.
        """
        if offset + len(content) > size:
            raise InvalidAdapter(f"{name} has {size} bytes, this part ends at {offset + len(content)}", "offset")
        folder = self.upload_folder(upload_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder / name) as descriptor:
            here = os.fstat(descriptor).st_size
            if offset != here:
                raise AdapterConflict(f"the offset must be {here}, the bytes of {name} that were received", "offset")
            try:
                write_all(descriptor, content, offset)
            except OSError:
                os.ftruncate(descriptor, offset)
                raise
        return offset + len(content)

    def seal(self, upload_id: str, sizes: Mapping[str, int], sha256: Mapping[str, str]) -> Path:
        """Check and sync the files of an upload. Returns their folder.

        Raises:
            AdapterConflict: a file is not complete.
            InvalidAdapter: a file has another digest than stated.
        """
        folder, received = self.upload_folder(upload_id), self.received(upload_id)
        for name in FILES:
            if received[name] != sizes[name]:
                raise AdapterConflict(f"{name} is not complete: {received[name]} of {sizes[name]} bytes", "files")
            if (found := _sha256(folder / name)) != sha256[name]:
                raise InvalidAdapter(f"the sha256 of {name} is {found}, another was stated", "sha256")
            sync(folder / name)
        sync(folder)
        return folder

    def copy(self, upload_id: str, source: Path, max_bytes: int) -> Path:
        """Copy the two files of a PEFT folder of this machine into the folder of an upload, and sync them.

        Raises:
            InvalidAdapter: a file is missing, no plain file, or they have more than `max_bytes`.
        """
        folder, left = self.upload_folder(upload_id), max_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in FILES:
            try:
                left -= _copy(source / name, folder / name, left)
            except OSError as error:
                reason = (error.strerror or type(error).__name__).lower()
                raise InvalidAdapter(f"the file {name} of the path cannot be read: {reason}", "path") from None
        sync(folder)
        return folder

    def publish(self, upload_id: str, digest: str) -> None:
        """Rename the synced files of an upload into place. Equal files may be there already."""
        folder, target = self.upload_folder(upload_id), self.folder / digest
        if target.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            return
        os.rename(folder, target)
        sync(self.folder)

    def discard(self, upload_id: str) -> None:
        """Remove the files of an upload."""
        shutil.rmtree(self.upload_folder(upload_id), ignore_errors=True)

    def sweep(self, digests: Collection[str], upload_ids: Collection[str]) -> int:
        """Remove all files but those of `digests` and `upload_ids`. Returns the number of folders removed.

        The caller holds the lock of changes: within it no files are between their renaming and the commit of the row
        that names them.
        """
        removed = 0
        for parent, kept in ((self.folder, digests), (self.folder / _UPLOADS, upload_ids)):
            for entry in _folders(parent):
                is_other = parent == self.folder and not _DIGEST.fullmatch(entry.name)
                if not is_other and entry.name not in kept:
                    shutil.rmtree(entry, ignore_errors=True)
                    removed += 1
        return removed


def _folders(parent: Path) -> list[Path]:
    try:
        return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except FileNotFoundError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """A file that is open for writing, made if missing, while no other request writes it.

    Raises:
        AdapterConflict: one does.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AdapterConflict(f"another request writes {path.name}") from None
        yield descriptor
    finally:
        os.close(descriptor)


def _copy(source: Path, target: Path, max_bytes: int) -> int:
    """Copy a plain file. Returns its bytes.

    Raises:
        InvalidAdapter: it is no plain file, or longer than `max_bytes`.
        OSError: it cannot be read.
    """
    if not source.is_file():
        raise InvalidAdapter(f"there is no file {source.name} in the folder", "path")
    copied = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while part := reader.read(_READ_BYTES):
            copied += len(part)
            if copied > max_bytes:
                raise InvalidAdapter("the files exceed the limit on an adapter's bytes", "path")
            writer.write(part)
        writer.flush()
        os.fsync(writer.fileno())
    return copied


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
