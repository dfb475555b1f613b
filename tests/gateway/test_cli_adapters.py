"""`turnpike adapter`, in-process."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.errors import OperatorError
from gateway.management.cli import adapters
from gateway.management.client import AdminClient
from tests.support.adapters import adapter_files, check, write_folder
from tests.support.command_line import failure, ok

pytestmark = pytest.mark.usefixtures("no_settings")
SUPPORT = ("--tenant", "acme", "--name", "support")


@pytest.fixture(autouse=True)
def acme(no_settings: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checker = ModuleType("engine.adapters.checker")
    checker.check_adapter = check  # type: ignore[attr-defined]  # in the place of the engine's
    monkeypatch.setitem(sys.modules, "engine.adapters.checker", checker)
    monkeypatch.setenv("TURNPIKE_MODELS", json.dumps({"tiny": str(tmp_path / "tiny")}))
    monkeypatch.setenv("TURNPIKE_ADAPTERS", json.dumps({"roots": [str(tmp_path / "root")]}))
    monkeypatch.setattr(adapters, "PART_BYTES", 5)
    ok("tenant", "create", "acme", "--tier", "standard")


def folder(tmp_path: Path, weights: bytes = b"some weights", rank: int = 8) -> str:
    return str(write_folder(tmp_path / weights.decode().replace(" ", "-"), adapter_files(weights, rank)))


def shown() -> Any:
    return json.loads(ok("adapter", "show", "support", "--tenant", "acme"))


def weights() -> list[int]:
    return [version["weight"] for version in shown()["versions"]]


def test_versions_from_upload_to_deletion(tmp_path: Path) -> None:
    assert "acme has support version 1: an adapter of tiny, rank 8" in ok(
        "adapter", "upload", folder(tmp_path), *SUPPORT
    )
    ok("adapter", "upload", folder(tmp_path, b"second"), *SUPPORT, "--no-activate")
    assert weights() == [100, 0]
    assert "v1 90 %, v2 10 %" in ok("adapter", "set-weights", "acme/support", "1=9", "2=1", "--tenant", "acme")
    ok("adapter", "rollback", "support", "--tenant", "acme")
    assert weights() == [100, 0]
    assert "1.25 times the price of tiny" in ok(
        "adapter", "set-price", "support", "--tenant", "acme", "--multiplier", "1.25"
    )
    listed = ok("adapter", "list")
    assert "x1.25" in listed
    assert "acme" in listed
    ok("adapter", "delete", "support", "--tenant", "acme", "--version", "2")
    ok("adapter", "delete", "support", "--tenant", "acme")
    assert "no adapter named support" in failure(1, "adapter", "show", "support", "--tenant", "acme")


def test_an_interrupted_upload_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, store = [], AdminClient.store

    def broken(client: AdminClient, name: str, content: bytes, *where: Mapping[str, Any]) -> Any:
        if len(sent) == 14:
            raise OperatorError("the gateway broke off")
        sent.append(content)
        return store(client, name, content, *where)

    monkeypatch.setattr(AdminClient, "store", broken)
    files = folder(tmp_path)
    said = failure(1, "adapter", "upload", files, *SUPPORT)
    monkeypatch.setattr(AdminClient, "store", store)
    upload_id = said.rpartition("--resume ")[2].strip(")\n")
    assert "support version 1" in ok("adapter", "upload", files, *SUPPORT, "--resume", upload_id)
    assert "no such upload" in failure(1, "adapter", "cancel", upload_id, "--tenant", "acme")


def test_a_folder_of_this_machine_is_imported(tmp_path: Path) -> None:
    write_folder(tmp_path / "root" / "mine", adapter_files())
    assert "support version 1" in ok("adapter", "import", "mine", *SUPPORT)
    assert "below the roots" in failure(1, "adapter", "import", "../elsewhere", *SUPPORT)


def test_limits(tmp_path: Path) -> None:
    limited = json.loads(ok("adapter-limit", "set", "--tenant", "acme", "--max-adapters", "0"))
    assert limited == {"max_adapters": 0, "max_bytes": None}
    assert "the limit is 0" in failure(1, "adapter", "upload", folder(tmp_path), *SUPPORT)
    ok("adapter-limit", "set", "--tenant", "acme", "--max-adapters", "default")
    ok("adapter", "upload", folder(tmp_path), *SUPPORT)


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in failure(1, "adapter", "upload", str(tmp_path), *SUPPORT)
    assert "r is 512, more than 64" in failure(1, "adapter", "upload", folder(tmp_path, rank=512), *SUPPORT)
    assert "must be one of the served models" in failure(
        1, "adapter", "upload", folder(tmp_path), *SUPPORT, "--model", "huge"
    )
    assert "not VERSION=WEIGHT" in failure(2, "adapter", "set-weights", "support", "half", "--tenant", "acme")
