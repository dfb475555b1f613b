"""`turnpike session`, in-process."""

import pytest

from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_a_window_is_shown_set_and_taken_back() -> None:
    ok("tenant", "create", "acme", "--tier", "premium")
    assert ok("session", "show", "acme") == "default\n"
    for window in ("summary", "sliding", "default"):
        said = ok("session", "set", "acme", "--window", window)
        assert said == f"the session window of tenant acme is {window}\n"
        assert ok("session", "show", "acme") == f"{window}\n"


def test_refusals() -> None:
    assert "sliding, summary or default" in failure(2, "session", "set", "acme", "--window", "forever")
    for command in (("show", "nobody"), ("set", "nobody", "--window", "summary")):
        assert "no tenant named nobody" in failure(1, "session", *command)
