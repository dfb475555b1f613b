"""Parameters that do not change the answer: user, safety and cache ids, metadata. Bounds are OpenAI's."""

from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_string, too_long

HINTS = {"user": 512, "safety_identifier": 64, "prompt_cache_key": 64}
"""Parameter -> maximum characters. OpenAI states no bound for `user`; clients put composed ids there."""

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


def take_hints(fields: Fields) -> str | None:
    """Take the hints and return `service_tier`, which can only lower the key's tier. `TierClasses` validates it.

    Raises:
        APIError: 400 naming the parameter that is not a string or too long.
    """
    stated_hints(fields)
    take_metadata(fields)
    return fields.string("service_tier")


def stated_hints(fields: Fields) -> dict[str, str | None]:
    """The values of `HINTS`. Raises: as `take_hints`."""
    return {name: fields.string(name, most) for name, most in HINTS.items()}


def take_metadata(fields: Fields) -> dict[str, str]:
    """Raises: APIError, 400 naming the member."""
    given = fields.nested("metadata")
    stated = {} if given is None else given.rest()
    if len(stated) > MAX_METADATA:
        raise invalid("metadata", f"Invalid 'metadata': too many properties. The maximum is {MAX_METADATA}.")
    metadata = {}
    for name, value in stated.items():
        path = f"metadata.{name[:MAX_METADATA_KEY_CHARS]}"
        if len(name) > MAX_METADATA_KEY_CHARS:
            message = f"Invalid '{path}': key too long. Expected a key with maximum length {MAX_METADATA_KEY_CHARS}."
            raise invalid(path, message)
        metadata[name] = as_string(value, path)
        if len(metadata[name]) > MAX_METADATA_VALUE_CHARS:
            raise too_long(path, MAX_METADATA_VALUE_CHARS, len(metadata[name]))
    return metadata
