"""The command line: in-process for what it says, as a subprocess for how it starts and ends."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.tenancy.keys import parse_key
from tests.support.command_line import failure, ok, turnpike

TURNPIKE = Path(sys.executable).with_name("turnpike")


pytestmark = pytest.mark.usefixtures("no_settings")


class TestTenants:
    def test_create_and_list(self) -> None:
        assert ok("tenant", "create", "acme", "--tier", "premium") == "created tenant acme (premium)\n"
        ok("tenant", "create", "beta", "--tier", "standard")
        header, acme, beta = ok("tenant", "list").splitlines()
        assert header.split() == ["NAME", "TIER", "CREATED", "AT", "SUSPENDED", "AT"]
        assert acme.split()[:2] == ["acme", "premium"]
        assert beta.split()[:2] == ["beta", "standard"]
        listed = json.loads(ok("tenant", "list", "--json"))
        assert [(each["name"], each["tier"]) for each in listed] == [("acme", "premium"), ("beta", "standard")]

    def test_an_empty_list_says_what_to_do_next(self) -> None:
        ok("db", "upgrade")
        assert json.loads(ok("tenant", "list", "--json")) == []
        result = turnpike("tenant", "list")
        assert (result.exit_code, result.stdout) == (0, "")
        assert "turnpike tenant create" in result.stderr

    def test_a_list_makes_no_data_directory(self, tmp_path: Path) -> None:
        for command in ("tenant", "key", "invoice", "admin-key", "audit", "price"):
            assert "there is no database" in failure(1, command, "list", "--data-dir", str(tmp_path / "absent"))
        assert not (tmp_path / "absent").exists()

    def test_suspend_and_resume(self) -> None:
        ok("tenant", "create", "acme", "--tier", "premium")
        ok("tenant", "suspend", "acme")
        assert json.loads(ok("tenant", "show", "acme", "--json"))["suspended_at"] is not None
        ok("tenant", "resume", "acme")
        ok("tenant", "set-tier", "acme", "--tier", "standard")
        shown = json.loads(ok("tenant", "show", "acme", "--json"))
        assert (shown["suspended_at"], shown["tier"]) == (None, "standard")

    def test_refusals(self) -> None:
        ok("tenant", "create", "acme", "--tier", "premium")
        assert "already" in failure(1, "tenant", "create", "acme", "--tier", "premium")
        assert "name must" in failure(1, "tenant", "create", "a b", "--tier", "premium")
        unknown = failure(1, "tenant", "create", "beta", "--tier", "gold")
        assert unknown == "turnpike: tier must be one of premium, standard, batch\n"
        assert json.loads(ok("tenant", "list", "--json"))[1:] == []
        assert "--tier" in failure(2, "tenant", "create", "beta")

    def test_the_tiers_are_the_classes_of_the_settings(self) -> None:
        Path("turnpike.toml").write_text("[service_classes.gold]\npriority = 1\n[service_classes.bulk]\npriority = 2\n")
        assert ok("tenant", "create", "acme", "--tier", "gold") == "created tenant acme (gold)\n"
        assert "gold, bulk" in failure(1, "tenant", "create", "beta", "--tier", "premium")
        assert "gold" in ok("tenant", "list")


class TestKeys:
    @pytest.fixture(autouse=True)
    def acme(self, no_settings: Path) -> None:
        ok("tenant", "create", "acme", "--tier", "premium")

    def test_create_prints_the_key_alone(self) -> None:
        printed = ok("key", "create", "--tenant", "acme", "--name", "laptop")
        assert parse_key(printed.removesuffix("\n")).plaintext + "\n" == printed

    def test_create_json(self) -> None:
        created = json.loads(ok("key", "create", "--tenant", "acme", "--json"))
        assert parse_key(created["key"]).public_id == created["id"]
        assert (created["tenant"], created["last_four"]) == ("acme", created["key"][-4:])

    def test_list_and_revoke(self) -> None:
        key = parse_key(ok("key", "create", "--tenant", "acme", "--name", "laptop").strip())
        (listed,) = json.loads(ok("key", "list", "--tenant", "acme", "--json"))
        assert (listed["id"], listed["name"], listed["revoked_at"]) == (key.public_id, "laptop", None)
        assert key.public_id in ok("key", "list")
        assert ok("key", "revoke", key.public_id) == f"revoked key {key.public_id} of tenant acme\n"
        (listed,) = json.loads(ok("key", "list", "--json"))
        assert listed["revoked_at"] is not None

    def test_lists_have_no_secret(self) -> None:
        key = ok("key", "create", "--tenant", "acme").strip()
        for shown in (ok("key", "list"), ok("key", "list", "--json")):
            assert key[16:-4] not in shown
            assert "digest" not in shown

    def test_refusals(self) -> None:
        assert "no tenant named nobody" in failure(1, "key", "create", "--tenant", "nobody")
        assert "no tenant named nobody" in failure(1, "key", "list", "--tenant", "nobody")
        assert "no key" in failure(1, "key", "revoke", "000000000000")
        assert "no tenant named nobody" in failure(1, "tenant", "suspend", "nobody")
        assert "--tenant" in failure(2, "key", "create")

    def test_a_whole_key_is_refused_and_not_repeated(self) -> None:
        key = ok("key", "create", "--tenant", "acme").strip()
        assert key[16:] not in failure(2, "key", "revoke", key)


class TestDatabase:
    def test_upgrade(self) -> None:
        assert ok("db", "upgrade") == "the database is up to date now\n"
        assert ok("db", "upgrade") == "the database was up to date\n"

    def test_postgresql_by_url(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TURNPIKE_DATABASE_URL", postgres_url.replace("postgresql+asyncpg", "postgresql"))
        ok("tenant", "create", "acme", "--tier", "premium")
        key = ok("key", "create", "--tenant", "acme").strip()
        assert key[3:15] in ok("key", "list")
        assert not list(tmp_path.rglob("turnpike.db"))

    def test_a_server_that_is_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TURNPIKE_DATABASE_URL", "postgresql://someone:s3cret@127.0.0.1:1/none")
        for command in (("tenant", "list"), ("tenant", "create", "a", "--tier", "premium"), ("db", "upgrade")):
            message = failure(1, *command)
            assert "does not answer" in message
            assert "s3cret" not in message
            assert "someone" not in message

    def test_a_data_dir_that_cannot_be(self) -> None:
        Path("file").write_text("")
        create = ("tenant", "create", "acme", "--tier", "premium")
        assert "file/data" in failure(1, *create, "--data-dir", "file/data")

    def test_every_command_takes_its_data_dir(self, tmp_path: Path) -> None:
        ok("tenant", "create", "acme", "--tier", "premium", "--data-dir", str(tmp_path / "other"))
        assert "acme" in ok("tenant", "list", "--data-dir", str(tmp_path / "other"))
        ok("db", "upgrade")
        assert json.loads(ok("tenant", "list", "--json")) == []


class TestModels:
    def test_list_says_what_is_there(self) -> None:
        listed = {each["name"]: each["fetched"] for each in json.loads(ok("models", "list", "--json"))}
        assert listed["smollm2"] is False

    def test_fetch_prints_the_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def fetch(name: str, models_dir: Path, progress) -> Path:  # type: ignore[no-untyped-def]
            for done in range(0, 101, 5):
                progress(done * 2**20, 100 * 2**20)
            return models_dir / f"{name}.gguf"

        monkeypatch.setattr("gateway.process.catalog.fetch", fetch)
        result = turnpike("models", "fetch", "small")
        assert result.exit_code == 0
        assert result.stdout == f"{tmp_path}/cache/turnpike/models/small.gguf\n"
        assert result.stderr.splitlines() == [f"fetching small: {done} of 100 MiB" for done in (0, 25, 50, 75, 100)]

    def test_an_unknown_name(self) -> None:
        assert "no model is called" in failure(1, "models", "fetch", "gpt-5")


class TestServeRefuses:
    @pytest.mark.parametrize(
        ("arguments", "code", "complaint"),
        [
            (["--model", "foo", "--port", "0"], 1, "model foo: there is no "),
            (["--model", "=x"], 2, "'=x' is not [NAME=]MODEL"),
            (["--model", "a=x", "--model", "a=y"], 2, "'a' is given twice"),
            (["--model", "a b=x"], 1, "the model name 'a b'"),
            (["--model", "a=/nowhere", "--port", "0"], 1, "/nowhere"),
            (["--port", "99999"], 1, "port: "),
            (["--port", "http"], 2, "--port"),
            (["--device", "tpu"], 1, "device: "),
            (["--dtype", "int8"], 1, "dtype: "),
            (["--kv-dtype", "int3"], 1, "kv_dtype: "),
            (["--quantize", "int3"], 1, "quantize: "),
            (["--kv-cache-bytes", "lots"], 1, "kv_cache_bytes: "),
            (["--max-running", "0"], 1, "max_running: "),
        ],
    )
    def test_a_bad_flag(self, arguments: list[str], code: int, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
        assert complaint in failure(code, "serve", *arguments)

    def test_a_gpu_that_is_not_there_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        ok("price", "set", "a", "--input", "0.1", "--output", "0.4")
        arguments = ("serve", "--device", "cuda", "--model", "a=.", "--port", "0")
        assert "device cuda needs a GPU" in failure(1, *arguments)

    def test_fp8_kv_without_a_gpu_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
        ok("price", "set", "a", "--input", "0.1", "--output", "0.4")
        arguments = ("serve", "--device", "cpu", "--kv-dtype", "fp8", "--model", "a=.", "--port", "0")
        assert "kv_dtype fp8 needs a GPU" in failure(1, *arguments)

    def test_int8_kv_without_bf16_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.process.serve.configure_logging", lambda *_: None)
        ok("price", "set", "a", "--input", "0.1", "--output", "0.4")
        arguments = ("--device", "cpu", "--dtype", "float32", "--kv-dtype", "int8", "--model", "a=.", "--port", "0")
        assert "kv_dtype int8 needs dtype bfloat16" in failure(1, "serve", *arguments)

    def test_a_key_for_everybody_is_one_line(self) -> None:
        message = failure(1, "serve", "--host", "0.0.0.0", "--port", "0", "--demo")
        assert "--demo" in message
        assert "0.0.0.0" in message

    def test_a_placeholder_for_a_pepper_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TURNPIKE_KEY_PEPPER", "change-me-" * 4)
        message = failure(1, "serve", "--host", "0.0.0.0", "--port", "0")
        assert "key_pepper is a placeholder" in message
        assert "0.0.0.0" in message

    def test_a_bad_file_is_one_line(self) -> None:
        Path("turnpike.toml").write_text("prot = 1")
        assert "unknown key prot" in failure(1, "serve")
        assert "unknown key prot" in failure(1, "tenant", "list")

    def test_a_bad_class_is_one_line_that_names_the_key(self) -> None:
        Path("turnpike.toml").write_text("[service_classes.gold]\npriority = 1\nreserved_fraction = 2\n")
        for command in (("serve",), ("doctor",), ("tenant", "list")):
            message = failure(1, *command)
            assert message.startswith("turnpike: service_classes.gold.reserved_fraction: ")


class TestFrame:
    @pytest.mark.parametrize("group", [[], ["tenant"], ["key"], ["models"], ["db"]])
    def test_no_command_shows_the_help(self, group: list[str]) -> None:
        result = turnpike(*group)
        assert result.exit_code == 2
        assert "Commands:" in result.stderr

    @pytest.mark.parametrize(
        "command",
        ["serve", "doctor", "tenant create", "tenant list", "key create", "key list", "key revoke", "db upgrade"],
    )
    def test_help_says_where_the_data_lives(self, command: str) -> None:
        assert "--data-dir DIR" in ok(*command.split(), "--help")

    @pytest.mark.parametrize("command", ["tenant list", "invoice draft", "reconcile", "route set", "session show"])
    def test_help_says_how_to_reach_a_gateway(self, command: str) -> None:
        assert "TURNPIKE_ADMIN_KEY" in ok(*command.split(), "--help")

    def test_an_unknown_command(self) -> None:
        assert "No such command 'sreve'" in failure(2, "sreve")

    def test_a_bug_keeps_its_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.management.cli.managed.open_client", lambda *_: 1 / 0)
        assert isinstance(turnpike("tenant", "list").exception, ZeroDivisionError)


def run(command: Sequence[str | Path], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TURNPIKE_DATA_DIR": str(tmp_path / "data"), "PYTHONWARNINGS": "error"}
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_the_installed_command_works_from_any_folder(tmp_path: Path) -> None:
    done = run([TURNPIKE, "tenant", "create", "acme", "--tier", "premium"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "created tenant acme (premium)\n", "")
    done = run([TURNPIKE, "key", "create", "--tenant", "acme"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    parse_key(done.stdout.strip())
    done = run([TURNPIKE, "tenant", "create", "acme", "--tier", "premium"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert re.match("turnpike: .*acme", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--help"], ["torch", "engine", "sqlalchemy", "pydantic", "structlog", "alembic", "rich"]),
        (["tenant", "list", "--json"], ["torch", "uvicorn", "alembic", "chdb"]),
    ],
)
def test_light_commands_import_nothing_heavy(arguments: list[str], unused: list[str], tmp_path: Path) -> None:
    run([TURNPIKE, "db", "upgrade"], tmp_path)
    script = (
        "import sys\nfrom gateway.management.cli import app\n"
        f"try: app({arguments})\n"
        f"finally: print([name for name in {unused} if name in sys.modules], file=sys.stderr)"
    )
    assert run([sys.executable, "-c", script], tmp_path).stderr == "[]\n"


def test_no_secret_is_logged_by_a_whole_run(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything any library logs at any level, over all that the commands do with keys."""
    pepper = "pepper-" * 6
    monkeypatch.setenv("TURNPIKE_KEY_PEPPER", pepper)
    caplog.set_level(logging.DEBUG)
    printed = [ok("tenant", "create", "acme", "--tier", "premium")]
    key = ok("key", "create", "--tenant", "acme").strip()
    printed += [ok("key", "list"), ok("key", "list", "--json"), ok("key", "revoke", key[3:15])]
    printed += [failure(2, "key", "revoke", key), failure(1, "key", "create", "--tenant", "nobody")]
    everything = caplog.text + "".join(printed)
    assert caplog.records
    assert key[16:] not in everything
    assert pepper not in everything
