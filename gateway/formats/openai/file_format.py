"""Files in OpenAI's format, and their errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gateway.common.timestamps import unix_ms
from gateway.files.errors import FileLimitExceeded, FileStoreFull, FileStoreUnavailable, UnknownFile
from gateway.files.records import StoredFile
from gateway.http.errors import SERVER_ERROR, APIError


def file_object(file: StoredFile) -> dict[str, Any]:
    """OpenAI's `FileObject`."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": unix_ms(file.created_at) // 1000,
        "expires_at": None if file.expires_at is None else unix_ms(file.expires_at) // 1000,
        "filename": file.filename,
        "purpose": file.purpose.value,
        "status": "processed",
        "status_details": None,
    }


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """A page of objects with ids, as OpenAI lists them."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


@contextmanager
def answering_files(param: str | None = None, status: int = 404) -> Iterator[None]:
    """Turn the errors of files into API errors. `param`, `status`: of a file that does not exist."""
    try:
        yield
    except UnknownFile as error:
        raise APIError(
            status, f"No such File object: {str(error)[:200]}.", param=param or "id", code="not_found"
        ) from None
    except FileLimitExceeded as error:
        raise APIError(400, str(error), param="file", code="storage_limit_exceeded") from None
    except FileStoreFull:
        message = "The server has no room for this file at the moment. Please retry later, or send a smaller one."
        raise APIError(507, message, type=SERVER_ERROR, param="file", code="insufficient_storage") from None
    except FileStoreUnavailable:
        message = "Files cannot be read or written at the moment. Please retry in a few seconds."
        raise APIError(
            503, message, type=SERVER_ERROR, code="service_unavailable", headers={"retry-after": "5"}
        ) from None
