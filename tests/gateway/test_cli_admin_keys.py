"""turnpike admin-key."""

import json

import pytest

from gateway.management.cli.admin_keys import RoleName
from gateway.management.operations.roles import Role
from gateway.tenancy.keys import ADMIN_PREFIX, parse_key
from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_the_roles_are_those_of_the_admin_api() -> None:
    assert [each.value for each in RoleName] == [each.value for each in Role]


def test_create_prints_the_key_alone_list_shows_no_secret_and_revoke_ends_it() -> None:
    printed = ok("admin-key", "create", "--role", "billing", "Ada").removesuffix("\n")
    key = parse_key(printed, ADMIN_PREFIX)
    (listed,) = json.loads(ok("admin-key", "list", "--json"))
    assert (listed["public_id"], listed["name"], listed["role"]) == (key.public_id, "Ada", "billing")
    assert (listed["revoked_at"], listed["last_used_at"]) == (None, None)
    for shown in (ok("admin-key", "list"), ok("admin-key", "list", "--json")):
        assert printed[17:-4] not in shown
        assert "digest" not in shown
    assert ok("admin-key", "revoke", key.public_id) == f"revoked the billing key {key.public_id} (Ada)\n"
    (listed,) = json.loads(ok("admin-key", "list", "--json"))
    assert listed["revoked_at"] is not None


def test_create_json() -> None:
    created = json.loads(ok("admin-key", "create", "--role", "admin", "Ada", "--json"))
    assert parse_key(created["key"], ADMIN_PREFIX).public_id == created["public_id"]


def test_refusals() -> None:
    assert "--role" in failure(2, "admin-key", "create", "Ada")
    assert "root" in failure(2, "admin-key", "create", "--role", "root", "Ada")
    assert "128 printable" in failure(1, "admin-key", "create", "--role", "admin", "")
    assert "no administrator's key" in failure(1, "admin-key", "revoke", "000000000000")
    secret = ok("admin-key", "create", "--role", "admin", "Ada").strip()
    assert secret not in failure(2, "admin-key", "revoke", secret)
