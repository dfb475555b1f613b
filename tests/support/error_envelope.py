"""The envelope of every answer that is not 2xx."""


def error_of(response, status: int | None = None) -> dict:
    """The error of a response, after a check of its envelope and headers."""
    assert response.status_code >= 400, response.text
    if status is not None:
        assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert int(response.headers["openai-processing-ms"]) >= 0
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert [name for name in error if name != "limit"] == ["message", "type", "param", "code"]
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["code"], str)
    if response.status_code == 429:
        assert error["type"] in ("rate_limit_error", "insufficient_quota")
    else:
        assert error["type"] == ("server_error" if response.status_code >= 500 else "invalid_request_error")
    return error
