"""`turnpike session`, in-process."""

import json

import pytest

from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_a_window_is_shown_set_and_taken_back() -> None:
    ok("tenant", "create", "acme", "--tier", "premium")
    assert json.loads(ok("session", "show", "--tenant", "acme")) == {"window": None}
    for option, window in (("summary", "summary"), ("sliding", "sliding"), ("default", None)):
        assert json.loads(ok("session", "set", "--tenant", "acme", "--window", option)) == {"window": window}
        assert json.loads(ok("session", "show", "--tenant", "acme")) == {"window": window}


def test_refusals() -> None:
    ok("db", "upgrade")
    assert "one of sliding, summary; default removes" in failure(
        2, "session", "set", "--tenant", "acme", "--window", "forever"
    )
    for command in (("show",), ("set", "--window", "summary")):
        assert "no tenant named nobody" in failure(1, "session", *command, "--tenant", "nobody")
