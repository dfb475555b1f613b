"""The pepper: the secret under which API keys are stored.

It comes from the settings, or from `<data_dir>/secrets/pepper`, which the first command that needs it writes.
Losing it invalidates every key; `pepper_id` lets the store distinguish a lost pepper from a wrong key.
"""

import contextlib
import os
import secrets
from pathlib import Path

from gateway.config.setting_rules import MIN_PEPPER_CHARS
from gateway.config.settings import Settings
from gateway.errors import OperatorError

PEPPER_BYTES = 32


class UnusablePepper(OperatorError):
    """The pepper's file is missing, short, or open to other users."""


def pepper_path(settings: Settings) -> Path:
    return settings.data_dir / "secrets" / "pepper"


def load_pepper(settings: Settings) -> bytes:
    """The pepper, created on first use unless the settings have one.

    Raises:
        UnusablePepper: its file cannot be read or written, is short, or can be read by other users.
    """
    if settings.key_pepper is not None:
        return settings.key_pepper.get_secret_value().encode()
    path = pepper_path(settings)
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            raise UnusablePepper(f"{path} is open to other users: chmod 600 {path}")
        pepper = path.read_bytes().strip()
    except OSError as error:
        raise UnusablePepper(f"{path}: {error.strerror}") from None
    if len(pepper) < MIN_PEPPER_CHARS:
        raise UnusablePepper(f"{path} is too short to be a pepper")
    return pepper


def _create(path: Path) -> None:
    """Write a new pepper atomically. If two processes do it concurrently, the first one's pepper stays and the other
    reads it."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f"pepper.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(PEPPER_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
