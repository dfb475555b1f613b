import importlib.metadata
import resource
import shutil
import socket
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from gateway.config.settings import Settings, load_settings
from gateway.doctor import Finding, State, files, machine
from gateway.doctor.finding import Check
from kernels.cpu.native import Level
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("no_settings")

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data", models_dir=tmp_path / "models", port=free_port())


def only(check: Check, settings: Settings) -> Finding:
    (found,) = check(settings)
    return found


def test_a_machine_without_a_compiler(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr("kernels.cpu.native.level", lambda: None)
    found = only(machine.compiler, settings)
    assert (found.state, found.remedy.startswith("apt-get install")) == (State.WARNING, True)


def test_a_wheel_needs_no_compiler(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr("kernels.cpu.native.level", lambda: Level.AVX2)
    assert only(machine.compiler, settings).state is State.OK


def test_package_names_are_of_this_installation(settings: Settings) -> None:
    assert only(machine.package_names, settings).state is State.OK


def test_another_distribution_with_a_package_of_the_same_name(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "kernels-0.9.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.9.0\n")
    (metadata / "top_level.txt").write_text("kernels\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = only(machine.package_names, settings)
    assert (found.state, "kernels (of kernels)" in found.detail) == (State.FAILURE, True)
    assert "an environment of its own" in found.remedy


def test_a_package_of_the_same_name_that_comes_first(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "migrations", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    found = only(machine.package_names, settings)
    assert (found.state, f"migrations is imported from {tmp_path}" in found.detail) == (State.FAILURE, True)


@pytest.mark.parametrize(
    ("level", "state", "said"),
    [
        (None, State.WARNING, "torch alone"),
        (Level.PORTABLE, State.WARNING, "neither AVX2"),
        (Level.AVX2, State.OK, "AVX2"),
        (Level.AVX512_BF16, State.OK, "AVX512_BF16"),
        (Level.AVX512_FLOAT, State.OK, "AVX512_FLOAT"),
    ],
)
def test_native_kernels(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, level: Level | None, state: State, said: str
) -> None:
    monkeypatch.setattr("kernels.cpu.native.level", lambda: level)
    found = only(machine.native_kernels, settings)
    assert (found.state, said in found.detail) == (state, True)


@pytest.mark.parametrize(
    ("modes", "state", "said"),
    [
        ("always [madvise] never\n", State.OK, "madvise"),
        ("[always] madvise never\n", State.OK, "always"),
        ("always madvise [never]\n", State.WARNING, "switched off"),
        (None, State.OK, "nothing known"),
    ],
)
def test_huge_pages(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, modes: str | None, state: State, said: str
) -> None:
    if modes is not None:
        (tmp_path / "enabled").write_text(modes)
    monkeypatch.setattr(machine, "_HUGE_PAGES", tmp_path / "enabled")
    found = only(machine.huge_pages, settings)
    assert (found.state, said in found.detail) == (state, True)
    assert (found.remedy == "") == (state is State.OK)


class TestPackages:
    def requiring(self, monkeypatch: pytest.MonkeyPatch, *requirements: str) -> None:
        monkeypatch.setattr(importlib.metadata, "requires", lambda _: list(requirements))

    def test_this_environment_has_what_is_required(self, settings: Settings) -> None:
        assert only(machine.packages, settings).state is State.OK

    def test_another_version(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = importlib.metadata.version("typer")
        self.requiring(monkeypatch, "typer==0.0.1", "sqlalchemy[asyncio]<0.0.2", "no-such-thing>=1,<2")
        found = only(machine.packages, settings)
        assert found.state is State.WARNING
        assert f"typer {installed} (==0.0.1), sqlalchemy " in found.detail
        assert "no-such-thing is missing (<2,>=1)" in found.detail

    def test_what_only_extras_need_does_not_count(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requiring(monkeypatch, 'no-such-thing==1; extra == "dev"', "typer")
        assert only(machine.packages, settings).state is State.OK

    def test_a_build_of_the_same_version(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requiring(monkeypatch, "torch==2.13.0")
        monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.13.0+cpu")
        assert only(machine.packages, settings).state is State.OK


@pytest.mark.parametrize(
    ("hard", "state"), [(1024, State.WARNING), (4096, State.OK), (resource.RLIM_INFINITY, State.OK)]
)
def test_open_files(settings: Settings, monkeypatch: pytest.MonkeyPatch, hard: int, state: State) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    found = only(machine.open_files, settings)
    assert (found.state, "LimitNOFILE" in found.remedy) == (state, state is State.WARNING)


@pytest.mark.parametrize(("natively", "said"), [(True, "leaves alone"), (False, "threads")])
def test_device_of_torch(settings: Settings, monkeypatch: pytest.MonkeyPatch, natively: bool, said: str) -> None:
    monkeypatch.setattr(machine, "computes_natively", lambda: natively)
    monkeypatch.setattr(machine, "has_cuda_driver", lambda: False)
    found = only(machine.torch, settings)
    assert (found.state, said in found.detail) == (State.OK, True)


@pytest.mark.parametrize(("natively", "state"), [(True, State.OK), (False, State.FAILURE)])
def test_torch_is_not_there(settings: Settings, monkeypatch: pytest.MonkeyPatch, natively: bool, state: State) -> None:
    """It is missed where it would compute, and nowhere else."""

    def version(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(machine, "computes_natively", lambda: natively)
    monkeypatch.setattr(machine, "has_cuda_driver", lambda: False)
    found = only(machine.torch, settings)
    assert (found.state, found.remedy) == (state, "" if natively else "pip install torch")


@pytest.mark.parametrize(
    ("device", "driver", "state"),
    [
        ("cuda", True, State.FAILURE),
        ("cuda", False, State.FAILURE),
        ("auto", True, State.WARNING),
        ("auto", False, State.OK),
        ("cpu", True, State.OK),
    ],
)
def test_a_gpu_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, driver: bool, state: State
) -> None:
    monkeypatch.setattr(machine, "has_cuda_driver", lambda: driver)
    monkeypatch.setattr(machine, "cuda_flaw", lambda: "a driver for CUDA 13")
    found = only(machine.gpu, load_settings(data_dir=tmp_path, device=device))
    assert found.state is state
    assert ("a driver for CUDA 13" in found.detail) == (state is not State.OK)


class TestFiles:
    def test_a_data_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert only(files.data_dir, load_settings(data_dir=tmp_path / "file")).state is State.FAILURE

    @pytest.mark.parametrize(
        ("free", "state"), [(10**6, State.FAILURE), (3 * 10**8, State.WARNING), (10**11, State.OK)]
    )
    def test_journal_space(self, settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, state: State) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))
        assert only(files.journal, settings).state is state

    def test_a_pepper_that_others_can_read(self, settings: Settings) -> None:
        (settings.data_dir / "secrets").mkdir(parents=True)
        (settings.data_dir / "secrets" / "pepper").write_text("p" * 64)
        (settings.data_dir / "secrets" / "pepper").chmod(0o644)
        found = only(files.pepper, settings)
        assert found.state is State.FAILURE
        assert "chmod 600" in found.detail


class TestPort:
    def test_one_in_use(self, settings: Settings) -> None:
        assert only(files.port, settings).state is State.OK
        with socket.create_server(("127.0.0.1", settings.port)):
            assert only(files.port, settings).state is State.FAILURE

    @pytest.mark.parametrize(("header", "state"), [(b"x-request-id: 1\r\n", State.OK), (b"", State.FAILURE)])
    def test_one_in_use_by_a_gateway_or_another_server(self, settings: Settings, header: bytes, state: State) -> None:
        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + header + b"content-length: 0\r\n\r\n")

        with socket.create_server(("127.0.0.1", settings.port)) as listener:
            thread = threading.Thread(target=answer)
            thread.start()
            assert only(files.port, settings).state is state
            thread.join()
