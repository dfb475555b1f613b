import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.common.ids import pepper_id
from gateway.config.pepper import UnusablePepper, load_pepper, pepper_path
from gateway.config.settings import Settings, load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data")


def test_it_is_made_once_for_its_owner_alone(settings: Settings) -> None:
    pepper = load_pepper(settings)
    assert len(pepper) == 64
    assert load_pepper(settings) == pepper
    assert stat.S_IMODE(pepper_path(settings).stat().st_mode) == 0o600
    assert stat.S_IMODE(pepper_path(settings).parent.stat().st_mode) == 0o700
    assert [path.name for path in pepper_path(settings).parent.iterdir()] == ["pepper"]


def test_processes_that_start_together_agree(settings: Settings) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load_pepper, [settings] * 16))) == 1


def test_the_settings_come_first(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, key_pepper="s" * 32)
    assert load_pepper(settings) == b"s" * 32
    assert not pepper_path(settings).exists()


def test_a_file_that_others_can_read_is_refused(settings: Settings) -> None:
    load_pepper(settings)
    pepper_path(settings).chmod(0o640)
    with pytest.raises(UnusablePepper, match="chmod 600"):
        load_pepper(settings)


def test_a_short_file_is_refused(settings: Settings) -> None:
    load_pepper(settings)
    pepper_path(settings).write_text("short\n")
    with pytest.raises(UnusablePepper, match="too short"):
        load_pepper(settings)


def test_a_data_directory_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(UnusablePepper):
        load_pepper(load_settings(data_dir=tmp_path / "data"))


def test_the_id_tells_peppers_apart_and_nothing_else() -> None:
    assert pepper_id(b"a" * 32) != pepper_id(b"b" * 32)
    assert len(pepper_id(b"a" * 32)) == 16
