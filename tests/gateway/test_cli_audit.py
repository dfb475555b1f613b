"""The audit log has an entry for each change that a command makes."""

import json
import os
import pwd
import sqlite3
from collections.abc import Iterator

import pytest
import typer.main
from typer.core import TyperGroup

from gateway.config.settings import load_settings
from gateway.management.cli import app
from tests.support.command_line import ok
from tests.support.invoiced_usage import MONTH, use

pytestmark = pytest.mark.usefixtures("no_settings")

USER = pwd.getpwuid(os.getuid()).pw_name
ACTOR = f"command-line:{USER}"[:32]
NUMBER = f"INV-{MONTH}-000001"
TENANT = ("--tenant", "acme")

CHANGES: dict[str, tuple[tuple[str, ...], tuple[str, str]]] = {
    "tenant set-tier": (("acme", "--tier", "standard"), ("update", "tenant")),
    "tenant suspend": (("acme",), ("suspend", "tenant")),
    "tenant resume": (("idle",), ("resume", "tenant")),
    "key set-grants": (("KEY", "--scope", "chat"), ("set_grants", "key")),
    "tenant create": (("beta", "--tier", "standard"), ("create", "tenant")),
    "key create": ((*TENANT, "--name", "ci"), ("create", "key")),
    "key revoke": (("KEY",), ("revoke", "key")),
    "admin-key create": (("Ada", "--role", "admin"), ("create", "admin_key")),
    "admin-key revoke": (("ADMIN_KEY",), ("revoke", "admin_key")),
    "limit set": ((*TENANT, "--concurrent", "4"), ("replace", "limits")),
    "adapter-limit set": ((*TENANT, "--max-adapters", "4"), ("replace", "adapter_limits")),
    "session set": ((*TENANT, "--window", "summary"), ("replace", "session_window")),
    "bill-to set": ((*TENANT, "--name", "Acme GmbH"), ("replace", "bill_to")),
    "route set": ((*TENANT, "--preference", "economy"), ("replace", "routing_policy")),
    "price set": (("n", "--input", "0.15", "--output", "0.60"), ("create", "price")),
    "credit grant": (("12.50", *TENANT, "--reason", "paid"), ("grant", "credit")),
    "invoice finalise": ((str(MONTH),), ("finalise", "invoice")),
    "invoice pay": ((NUMBER, "--reference", "transfer 7"), ("pay", "invoice")),
    "invoice void": ((NUMBER, "--reason", "a test"), ("void", "invoice")),
    "invoice credit": ((NUMBER, "--amount", "0.10", "--reason", "a slow day"), ("credit", "invoice")),
}
"""Commands that change what operations change: with these arguments they make this entry."""

OTHER_CHANGES = {
    "key rotate",  # two entries
    "models add",  # tests/gateway/test_cli_models_add.py
    "console link",  # tests/gateway/test_cli_console.py
    *(f"adapter {verb}" for verb in ("cancel", "delete", "import", "rollback", "set-price", "set-weights", "upload")),
}
"""Commands with tests of their own; those of adapters: test_cli_adapters.py and admin/test_adapters.py."""

CHANGES_NOTHING = {
    "adapter list",
    "adapter show",
    "adapter-limit show",
    "audit list",
    "audit verify",
    "bench",  # a client of any server
    "bench compare",
    "bill-to show",
    "config example",
    "config show",
    "cost show",
    "credit balance",
    "credit list",
    "db upgrade",  # the schema alone
    "distill",
    "doctor",
    "invoice draft",
    "invoice list",
    "invoice show",
    "admin-key list",
    "kafka create-topic",
    "key list",
    "key show",
    "key use",
    "limit list",
    "limit show",
    "models fetch",
    "models list",
    "plan",
    "plan measure",
    "price list",
    "reconcile",
    "refusals",
    "request list",
    "request show",
    "route fit",
    "route score",
    "route shares",
    "route show",
    "serve",  # the prices of its settings and the key of its demo: tests/gateway/admin/test_audit.py
    "session show",
    "sink",
    "tenant list",
    "tenant show",
    "top",
    "up",
    "usage latencies",
    "usage show",
    "worker",
}


def commands(group: TyperGroup, prefix: str = "") -> Iterator[str]:
    """The names of all commands below `group`, and of groups that do something themselves."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            if command.invoke_without_command:
                yield f"{prefix}{name}"
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def entries() -> list[sqlite3.Row]:
    path = load_settings().database_url.get_secret_value().partition("///")[2]
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute("SELECT * FROM audit_log ORDER BY sequence").fetchall()


def public_id(*arguments: str) -> str:
    created = json.loads(ok(*arguments, "--json"))
    return str(created["key"]).split("-")[1]


@pytest.fixture
def arguments_for() -> dict[str, str]:
    """Values of the commands' placeholders, with a tenant that has a key, an invoice and a price."""
    ok("tenant", "create", "acme", "--tier", "premium")
    ok("tenant", "create", "idle", "--tier", "standard")
    ok("tenant", "suspend", "idle")
    ok("price", "set", "m", "--input", "0.15", "--output", "0.60", "--effective-from", "2020-01-01")
    return {
        "KEY": public_id("key", "create", *TENANT),
        "ADMIN_KEY": public_id("admin-key", "create", "Bob", "--role", "viewer"),
    }


def test_a_new_command_says_whether_it_changes_something() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    assert set(commands(root)) == CHANGES.keys() | CHANGES_NOTHING | OTHER_CHANGES
    assert not CHANGES.keys() & CHANGES_NOTHING


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_leaves_one_entry_with_its_actor(command: str, arguments_for: dict[str, str]) -> None:
    arguments, expected = CHANGES[command]
    if command.startswith("invoice"):
        use((MONTH, 10**6))
    if command in ("invoice credit", "invoice pay", "invoice void"):
        ok("invoice", "finalise", str(MONTH))
    before = len(entries())
    ok(*command.split(), *(arguments_for.get(each, each) for each in arguments))
    (entry,) = entries()[before:]
    assert (entry["action"], entry["resource"]) == expected
    assert entry["actor"] == ACTOR
    assert entry["after"] is not None


def test_a_rotation_leaves_an_entry_for_each_of_its_keys(arguments_for: dict[str, str]) -> None:
    before = len(entries())
    successor = ok("key", "rotate", arguments_for["KEY"], "--overlap-hours", "0").strip()
    retired, created = entries()[before:]
    assert (retired["action"], retired["resource_id"]) == ("rotate", arguments_for["KEY"])
    assert (created["action"], created["resource_id"]) == ("create", successor.split("-")[1])


def test_a_command_that_changes_nothing_leaves_no_entry(arguments_for: dict[str, str]) -> None:
    key = arguments_for["KEY"]
    twice = [
        ("key", "revoke", key),
        ("limit", "set", *TENANT, "--concurrent", "4"),
        ("route", "set", *TENANT, "--degrade"),
        ("session", "set", *TENANT, "--window", "summary"),
        ("bill-to", "set", *TENANT, "--address", "1 Toll Road\nSpringfield"),
        ("credit", "grant", "1", *TENANT, "--reason", "paid", "--once", "first"),
    ]
    for arguments in twice:
        ok(*arguments)
    use((MONTH, 10**6))
    ok("invoice", "finalise", str(MONTH))
    twice.append(("invoice", "pay", NUMBER))
    ok(*twice[-1])
    before = len(entries())
    for arguments in twice:
        ok(*arguments)
    assert len(entries()) == before


def test_no_entry_holds_a_secret() -> None:
    ok("tenant", "create", "acme", "--tier", "premium")
    secret = ok("key", "create", *TENANT).strip().rpartition("-")[2]
    assert all(secret not in str(tuple(entry)) for entry in entries())
