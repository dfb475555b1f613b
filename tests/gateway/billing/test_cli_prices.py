"""`turnpike price`, in-process."""

import json
from datetime import UTC, datetime

import pytest

from tests.support.command_line import failure, ok, turnpike

pytestmark = pytest.mark.usefixtures("no_settings")

PRICE_M = ("price", "set", "m", "--input", "0.15", "--cached", "0.075", "--output", "0.60")
NEXT_YEAR = datetime.now(UTC).year + 1


def test_set_and_list() -> None:
    ok("db", "upgrade")
    assert json.loads(ok("price", "list", "--json")) == []
    said = ok(*PRICE_M, "--effective-from", "2026-01-01", "--multiplier", "premium=2", "--multiplier", "batch=0.4")
    assert said.count("\n") == 1
    for part in ("2026-01-01T00:00:00.000000Z", "0.15", "0.075", "0.60", "batch x0.4", "premium x2", "standard x1"):
        assert part in said
    ok("price", "set", "m", "--input", "0", "--output", "1", "--effective-from", f"{NEXT_YEAR}-01-01T02:00+02:00")
    first, second = json.loads(ok("price", "list", "--json"))
    assert (first["id"], first["cached_input_dollars_per_million"]) == ("m@2026-01-01T00:00:00.000Z", "0.075")
    assert (second["id"], second["effective_from"]) == (
        f"m@{NEXT_YEAR}-01-01T00:00:00.000Z",
        f"{NEXT_YEAR}-01-01T00:00:00.000000Z",
    )
    assert (second["input_dollars_per_million"], second["output_dollars_per_million"]) == ("0.00", "1.00")
    multipliers = {each["tier"]: each["multiplier"] for each in second["multipliers"]}
    assert multipliers == {"premium": "3", "standard": "1", "batch": "0.5"}
    assert ok("price", "list").splitlines()[1].split()[:4] == ["m", "2026-01-01T00:00:00.000000Z", "0.15", "0.075"]


def test_refusals() -> None:
    assert "--output" in failure(2, "price", "set", "m", "--input", "1")
    assert "--input" in failure(2, "price", "set", "m", "--input", "1e9", "--output", "1")
    assert "0.15 or 0.151" in failure(1, "price", "set", "m", "--input", "0.1505", "--output", "1")
    assert "not CLASS=N" in failure(2, *PRICE_M, "--multiplier", "premium")
    assert "twice" in failure(2, *PRICE_M, "--multiplier", "premium=1", "--multiplier", "premium=2")
    assert "--effective-from" in failure(2, *PRICE_M, "--effective-from", "soon")
    assert "--effective-from" in failure(2, *PRICE_M, "--effective-from", "0001-01-01T00:00+23:00")
    ok(*PRICE_M)
    assert "now" in failure(1, *PRICE_M, "--effective-from", "2026-01-01")


def test_what_the_settings_state_is_changed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_PRICES", '{"m": ["1", "2"]}')
    assert "settings" in failure(1, *PRICE_M)


def test_a_model_that_no_settings_serve_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_MODELS", '{"served": "/models/served"}')
    ok("price", "set", "served", "--input", "0.15", "--output", "0.60")
    result = turnpike(*PRICE_M)
    assert (result.exit_code, "m costs from" in result.stdout) == (0, True)
    assert result.stderr.startswith("turnpike: warning: no model is served as m")
