"""The command line in-process: what it prints, and how it ends."""

from functools import cache
from unittest.mock import patch

from typer.main import get_command
from typer.testing import CliRunner, Result

from gateway.management.cli import app

_command = cache(get_command)
"""The tree of all commands, made once a process: it takes longer than most calls of one of them."""


def turnpike(*arguments: str) -> Result:
    with patch("typer.testing._get_command", _command):
        return CliRunner().invoke(app, arguments)


def ok(*arguments: str) -> str:
    result = turnpike(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def failure(code: int, *arguments: str) -> str:
    """Standard error of a command that ends with `code`: one line, no traceback, nothing on standard output."""
    result = turnpike(*arguments)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("turnpike: ")
    assert result.stderr.count("\n") == 1
    return result.stderr
