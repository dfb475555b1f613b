"""The file of `turnpike up`."""

import json
from pathlib import Path

import pytest

from gateway.cluster.cluster_file import load_cluster_file
from gateway.cluster.fleet_file import locked
from gateway.config.setting_sources import SettingsError
from gateway.errors import OperatorError

LEAST = '[models]\nchat = "qwen3"\n[workers.chat]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    cluster = load_cluster_file(written(tmp_path, f'work_dir = "work"\n{LEAST}'))
    assert cluster.models == {"chat": tmp_path / "qwen3"}
    assert (cluster.fleet_file, cluster.work_dir) == (tmp_path / "fleet.json", tmp_path / "work")
    assert cluster.command("chat") == ["--model", f"chat={tmp_path / 'qwen3'}", "--lease", "300"]


def test_settings_and_certificates_reach_the_workers_as_variables(tmp_path: Path) -> None:
    text = f"""
address = "auto"
drain_s = 7
[tls]
certificate = "/c"
key = "/k"
ca = "/a"
server_name = "workers"
{LEAST}gpus = 2
settings = {{ kv_cache_bytes = "4GiB", threads = 2, engine_process = false, small_models = {{ a = "b" }} }}
"""
    cluster = load_cluster_file(written(tmp_path, text))
    variables = cluster.environment("chat")
    assert json.loads(variables.pop("TURNPIKE_WORKER_TLS")) == {"certificate": "/c", "key": "/k", "ca": "/a"}
    assert variables == {
        "TURNPIKE_SHUTDOWN_DEADLINE_S": "7",
        "TURNPIKE_KV_CACHE_BYTES": "4GiB",
        "TURNPIKE_THREADS": "2",
        "TURNPIKE_ENGINE_PROCESS": "false",
        "TURNPIKE_SMALL_MODELS": '{"a": "b"}',
        "TURNPIKE_LOG_FORMAT": "json",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "models"),
        ("[models", "is not TOML"),
        ('[models]\nchat = "a"\n[workers]\n', "are needed"),
        (f"{LEAST}min = 3\nmax = 2\n", "workers.chat: min is 3, and max 2"),
        (f"{LEAST}gpu = 1\n", "workers.chat.gpu"),
        (f'{LEAST}models = ["other"]\n', r"the model 'other' is not in \[models\]"),
        (f"{LEAST}settings = {{ thread = 1 }}\n", "unknown setting thread"),
        (f'address = "auto"\n{LEAST}', r"\[tls\] is needed"),
        (f"lease_s = 1\n{LEAST}", "lease_s"),
    ],
)
def test_what_it_refuses(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_cluster_file(written(tmp_path, text))


def test_a_fleet_file_has_one_keeper(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    with locked(path), pytest.raises(OperatorError, match="another turnpike up"), locked(path):
        pass
    with locked(path):
        pass
