"""The body of POST /v1/batches, and batches in OpenAI's format."""

from dataclasses import dataclass
from typing import Any

from gateway.batches.records import COMPLETION_WINDOW, OUTPUT_LIFE_S, Batch, Status, as_json
from gateway.common.timestamps import unix_ms
from gateway.formats.openai.file_upload import EXPIRY_RANGE_S
from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_string, missing, only_value, too_long, unsupported_value

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_METADATA = 16
MAX_METADATA_NAME_CHARS = 64
MAX_METADATA_CHARS = 512


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A body that was checked."""

    input_file_id: str
    endpoint: str
    metadata: dict[str, str] | None
    output_life_s: int


def parse_batch(fields: Fields) -> BatchRequest:
    """Raises: APIError: 400, naming the field."""
    input_file_id = fields.required_string("input_file_id", 64)
    endpoint = fields.required_string("endpoint")
    if endpoint not in ENDPOINTS:
        raise unsupported_value("endpoint", endpoint, ENDPOINTS)
    window = fields.required_string("completion_window")
    if window != COMPLETION_WINDOW:
        raise only_value("completion_window", window, COMPLETION_WINDOW)
    metadata = parse_metadata(fields.take("metadata"), "metadata")
    life_s = OUTPUT_LIFE_S
    if (expiry := fields.nested("output_expires_after")) is not None:
        anchor = expiry.required_string("anchor")
        if anchor != "created_at":
            raise only_value(expiry.path("anchor"), anchor, "created_at")
        stated = expiry.integer("seconds", *EXPIRY_RANGE_S)
        if stated is None:
            raise missing(expiry.path("seconds"))
        life_s = stated
        expiry.finish({})
    fields.finish({})
    return BatchRequest(input_file_id, endpoint, metadata, life_s)


def parse_metadata(value: object, path: str) -> dict[str, str] | None:
    """OpenAI's metadata: at most 16 strings by name."""
    if value is None:
        return None
    members = Fields(value, path).rest()
    if len(members) > MAX_METADATA:
        raise invalid(path, f"Invalid '{path}': at most {MAX_METADATA} pairs, but got {len(members)}.")
    metadata = {}
    for name, each in members.items():
        if len(name) > MAX_METADATA_NAME_CHARS:
            raise too_long(path, MAX_METADATA_NAME_CHARS, len(name))
        text = as_string(each, f"{path}.{name}")
        if len(text) > MAX_METADATA_CHARS:
            raise too_long(f"{path}.{name}", MAX_METADATA_CHARS, len(text))
        metadata[name] = text
    return metadata


def batch_object(batch: Batch) -> dict[str, Any]:
    """OpenAI's `Batch`."""
    usage, counts = batch.usage, batch.counts
    times = {
        f"{status.value}_at": None if (at := batch.times.get(status)) is None else unix_ms(at) // 1000
        for status in Status
        if status is not Status.VALIDATING
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "errors": {"object": "list", "data": as_json(batch.errors)} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": unix_ms(batch.created_at) // 1000,
        "expires_at": unix_ms(batch.expires_at) // 1000,
        **times,
        "request_counts": {"total": counts.total, "completed": counts.completed, "failed": counts.failed},
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
        "metadata": batch.metadata,
    }
