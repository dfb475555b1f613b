"""Session ids of clients, in a body, a header or a path."""

import re

from gateway.http.fields import wrong_pattern

SESSION_ID_PATTERN = "[A-Za-z0-9._:-]{1,128}"
_SESSION_ID = re.compile(SESSION_ID_PATTERN)


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def require_session_id(text: str, param: str) -> None:
    """Raises: APIError, 400 naming `param`."""
    if not is_session_id(text):
        raise wrong_pattern(param, "1 to 128 letters, digits, dots, underscores, colons and dashes")
