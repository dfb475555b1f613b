"""`StoredFile`: the facts of one file."""

import secrets
import string
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_ALPHABET = string.ascii_letters + string.digits
MAX_FILENAME_CHARS = 255


class Purpose(StrEnum):
    """OpenAI's purposes that are served. `batch_output` is of files that the gateway makes."""

    BATCH = "batch"
    USER_DATA = "user_data"
    BATCH_OUTPUT = "batch_output"


UPLOADED = (Purpose.BATCH, Purpose.USER_DATA)
"""Purposes of uploads."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a tenant. `bytes`: its size. `sha256`: of its content, in hexadecimal digits. `filename`: as the client
    states it; never part of a path. `expires_at`: when it is deleted; None: never."""

    id: str
    tenant_id: str
    filename: str
    purpose: Purpose
    bytes: int
    sha256: str
    created_at: datetime
    expires_at: datetime | None = None


def new_file_id() -> str:
    return "file-" + random_text(24)


def random_text(chars: int) -> str:
    """Random letters and digits, for ids that cannot be guessed."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(chars))
