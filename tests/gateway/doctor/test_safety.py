from pathlib import Path

import pytest

from gateway.config.settings import load_settings
from gateway.doctor import State, safety

pytestmark = pytest.mark.usefixtures("no_settings")

RANDOM = "f1c9a4b0773e2d58961a0bc4dd3f27e8"


@pytest.mark.parametrize(
    ("host", "pepper", "state"),
    [
        ("127.0.0.1", "change-me-change-me-change-me-change-me", State.OK),
        ("0.0.0.0", "change-me-change-me-change-me-change-me", State.FAILURE),
        ("0.0.0.0", RANDOM, State.OK),
        ("0.0.0.0", None, State.OK),
    ],
)
def test_a_pepper_that_others_may_know(tmp_path: Path, host: str, pepper: str | None, state: State) -> None:
    (found,) = safety.address(load_settings(data_dir=tmp_path, host=host, key_pepper=pepper))
    assert (found.state, "openssl rand" in found.remedy) == (state, state is State.FAILURE)
    assert pepper is None or pepper not in repr(found)


def test_stores_elsewhere_without_tls(tmp_path: Path) -> None:
    (found,) = safety.encryption(load_settings(data_dir=tmp_path, redis_url="redis://:s3cret@10.0.0.1"))
    assert (found.state, "redis_url" in found.detail, "s3cret" in repr(found)) == (State.WARNING, True, False)
    (found,) = safety.encryption(load_settings(data_dir=tmp_path, redis_url="rediss://10.0.0.1"))
    assert found.state is State.OK


def test_a_file_of_secrets_that_others_may_read(tmp_path: Path) -> None:
    file = tmp_path / "turnpike.toml"
    file.write_text(f'key_pepper = "{RANDOM}"\n')
    for mode, state in ((0o644, State.WARNING), (0o600, State.OK)):
        file.chmod(mode)
        (found,) = safety.secret_files(load_settings(data_dir=tmp_path))
        assert (found.state, f"chmod 600 {file}" in found.remedy) == (state, state is State.WARNING)


def test_processes(tmp_path: Path) -> None:
    (found,) = safety.processes(load_settings(data_dir=tmp_path))
    assert found.state is State.OK
    (found,) = safety.processes(load_settings(data_dir=tmp_path, gateway_processes=2))
    assert found.state is State.FAILURE
    assert "redis_url" in found.detail
    assert found.remedy
