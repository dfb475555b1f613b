"""The envelope of every answer on Anthropic's paths that is not 2xx."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "api_error",
    503: "api_error",
    529: "overloaded_error",
}


def error_of(response, status: int) -> str:
    """The error's message, after a check of its envelope and headers."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["type", "error", "request_id"]
    assert (body["type"], list(body["error"])) == ("error", ["type", "message"])
    assert body["error"]["type"] == TYPES[status]
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert body["error"]["message"]
    return body["error"]["message"]
