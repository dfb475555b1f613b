import json
import logging
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog

from gateway.telemetry.logs import configure_logging
from gateway.telemetry.redaction import REDACTED, Redactor, without_secret_fields
from gateway.tenancy.keys import ADMIN_PREFIX, TENANT_PREFIX, new_key

PASSWORD = "hunter2hunter2"


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Leave the process's logging as it was."""
    root = logging.getLogger()
    handlers, level, show = root.handlers[:], root.level, warnings.showwarning
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    warnings.showwarning = show
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_every_logger_writes_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    structlog.contextvars.bind_contextvars(request_id="r-1", tenant="acme")
    structlog.get_logger("turnpike.api").info("request", status=200)
    logging.getLogger("uvicorn.error").warning("port %d", 80)
    ours, theirs = lines(capsys)
    assert ours["event"] == "request"
    assert (ours["status"], ours["logger"], ours["level"]) == (200, "turnpike.api", "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("port 80", "uvicorn.error", "warning")
    for line in (ours, theirs):
        assert (line["request_id"], line["tenant"]) == ("r-1", "acme")
        assert str(line["timestamp"]).endswith("Z")


def test_the_level_holds_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("warning", "json")
    structlog.get_logger("a").info("quiet")
    logging.getLogger("b").info("quiet")
    logging.getLogger("alembic.runtime.migration").info("quiet")
    assert lines(capsys) == []


def test_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    configure_logging("info", "json")
    logging.getLogger("a").info("once")
    assert len(lines(capsys)) == 1


@pytest.mark.parametrize("prefix", [TENANT_PREFIX, ADMIN_PREFIX])
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_secret_gets_out(log_format: str, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By a field, in a message, in a traceback, from a local variable, of our loggers or of others'."""
    configure_logging("debug", log_format, [PASSWORD])  # type: ignore[arg-type]
    key = new_key(prefix)
    secret = key.plaintext.rpartition("-")[2]
    log = structlog.get_logger("turnpike.x")
    log.info("field", api_key=key.plaintext, prompt=f"my {PASSWORD}", nested={"messages": ["a private thing"]})
    log.info(f"text {key.plaintext}", url=f"postgresql://u:{PASSWORD}@db/d", other=[key.plaintext])
    logging.getLogger("other").error("Authorization: Bearer %s", key.plaintext)
    logging.getLogger("other").error("half a key: %s", key.plaintext[:30])
    try:
        raise ValueError(f"bad key {key.plaintext}")
    except ValueError:
        log.exception("failed", content="a private thing")
        logging.getLogger("other").exception("failed")
    shown = capsys.readouterr().err
    assert shown.count("\n") >= 6
    assert key.public_id in shown
    for hidden in (secret, key.plaintext[16:30], PASSWORD, "a private thing"):
        assert hidden not in shown


def test_warnings_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("info", "json")
        warnings.warn("watch out", stacklevel=1)
    (line,) = lines(capsys)
    assert "watch out" in str(line["event"])


def test_auto_is_json_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    configure_logging("info", "auto")
    logging.getLogger("a").info("x")
    assert lines(capsys)[0]["event"] == "x"


def test_what_is_no_secret_stays() -> None:
    redactor = Redactor(["abc"])  # too short to be looked for
    for text in ("http-abc-def", "abcd", "tp-4 on 2 GPUs", "a token-based limit", "http://host:80/x@y"):
        assert redactor.text(text) == text


def test_fields_are_hidden_at_any_depth() -> None:
    event = {"a": 1, "Prompt": "x", "b": {"c": {"headers": 1, "d": 2}}}
    assert without_secret_fields(event) == {"a": 1, "Prompt": REDACTED, "b": {"c": {"headers": REDACTED, "d": 2}}}
