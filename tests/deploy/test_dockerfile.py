"""The image, as far as it can be known without building it: what the Dockerfile says, and what its wheel holds."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.config.settings import Settings
from gateway.management.cli import app
from tests.deploy.dockerfile import DOCKERFILE, ROOT, command_of, image_environment, inherited, last, stages
from tests.deploy.locks import here
from tests.support.wheel import SOURCES, built_once

TARGETS = ("cpu", "standalone", "gpu")
PINNED = re.compile(r"^[a-z0-9./-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?$")
SITE_PACKAGES = "/opt/turnpike/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_once(tmp_path_factory)


def test_every_stage_stands_on_a_pinned_image_or_an_earlier_stage() -> None:
    known: set[str] = set()
    for stage in stages().values():
        assert stage.base in known or PINNED.match(stage.base), stage
        known.add(stage.name)
    assert {"build", *TARGETS} <= known


def test_all_images_have_the_same_python_as_the_packages_that_are_copied_into_them() -> None:
    images = {stage.base for stage in stages().values()} - set(stages())
    assert len(images) == 1
    assert SITE_PACKAGES.split("/")[4] == re.sub(r"^.*:(\d+\.\d+)\..*$", r"python\1", images.pop())


def test_what_is_made_without_a_target_is_for_the_cpu() -> None:
    assert list(stages())[-1] == "cpu"


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_a_user_who_is_not_root(target: str) -> None:
    assert inherited(target)[-1].instructions[-1][0] == "USER"
    user, _, group = last(target, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_it_starts_the_real_command_and_hears_sigterm(target: str) -> None:
    assert command_of(last(target, "ENTRYPOINT")) == ["turnpike"]
    command = command_of(last(target, "CMD"))
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0
    assert last(target, "STOPSIGNAL") == "SIGTERM"


@pytest.mark.parametrize("target", TARGETS)
def test_its_health_is_readiness_on_the_port_that_it_serves(target: str) -> None:
    port = image_environment(target)["TURNPIKE_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in command_of(last(target, "HEALTHCHECK"))[-1]
    assert last(target, "EXPOSE") == port


@pytest.mark.parametrize("target", TARGETS)
def test_everything_that_it_writes_goes_to_folders_of_its_user(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = image_environment(target)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    made = "\n".join(rest for stage in inherited(target) for rest in stage.all("RUN"))
    # A new volume takes over the owner of what it is mounted on.
    (volumes,) = re.findall(r"install -d -m 0700 -o turnpike -g turnpike ([^&]*)$", made, re.MULTILINE)
    written = [settings.data_dir, settings.journal_path, settings.models_dir]
    if "TRITON_CACHE_DIR" in environment:
        written.append(Path(environment["TRITON_CACHE_DIR"]))
    for path in written:
        assert any(path.is_relative_to(volume) for volume in volumes.split()), path


def test_no_secret_is_baked_in() -> None:
    secrets = {name for name, field in Settings.model_fields.items() if "Secret" in str(field.annotation)}
    assert "key_pepper" in secrets
    baked = {name.lower().removeprefix("turnpike_") for stage in stages().values() for name in stage.environment}
    assert not baked & secrets
    assert not [rest for stage in stages().values() for rest in stage.all("ARG")]
    assert not [rest for stage in stages().values() for rest in stage.all("ADD")]


def test_no_compiler_but_the_one_that_triton_asks_for() -> None:
    compilers = {"gcc", "g++", "clang", "make", "build-essential", "cmake"}
    for target in TARGETS:
        words = {word for stage in inherited(target) for rest in stage.all("RUN") for word in rest.split()}
        assert words & compilers == ({"gcc"} if target == "gpu" else set())


@pytest.mark.parametrize(
    ("target", "lock"),
    [("cpu", "requirements.lock"), ("standalone", "requirements.lock"), ("gpu", "requirements-gpu.lock")],
)
def test_packages_are_those_of_the_lock(target: str, lock: str) -> None:
    """Nothing else is resolved: what comes with its hashes comes first, on a GPU torch by its pin finds what it needs
    there, and the program brings nothing along."""
    stages_of = inherited(f"packages-{target}")
    commands = [each for stage in stages_of for rest in stage.all("RUN") for each in rest.split(" && ")]
    installs = [
        each.partition(" install ")[2] for each in commands if re.search(r"\bpip( --python \S+)? install ", each)
    ]
    torch = ["--no-cache-dir torch==2.13.0"] if target == "gpu" else []
    assert installs == [
        f"--no-cache-dir --no-deps --require-hashes -r {lock}",
        *torch,
        "--no-cache-dir --no-deps /wheels/turnpike-*.whl",
    ]


def test_the_embedded_store_is_in_the_image_that_runs_by_itself_alone() -> None:
    removed = {
        target: [rest for stage in inherited(f"packages-{target}") for rest in stage.all("RUN") if "uninstall" in rest]
        for target in ("cpu", "standalone")
    }
    assert removed["standalone"] == []
    (command,) = removed["cpu"]
    assert command.split()[-1] == "chdb-core"
    for target in removed:
        (copied,) = [words.split() for words in stages()[target].all("COPY")]
        assert copied == [f"--from=packages-{target}", "/opt/turnpike", "/opt/turnpike"]


def test_the_packages_of_the_cpu_image_take_less_than_300_mb() -> None:
    """As they are installed here, without their own tests and chDB: each file, and each module's bytecode as if it were
    as large. An image of 700 MB has room for the base image and the program besides."""
    counted = {
        name: sum(
            path.stat().st_size * (2 if path.suffix == ".py" else 1)
            for each in metadata.files(name) or ()
            if not {"tests", "__pycache__"} & set(each.parts) and (path := Path(each.locate())).is_file()
        )
        for name in here("requirements.lock").keys() - {"chdb-core"}
    }
    assert all(counted.values()), counted
    largest = sorted(counted.items(), key=lambda each: -each[1])[:10]
    assert 200e6 < sum(counted.values()) < 300e6, largest


def test_the_wheel_is_built_from_what_is_copied() -> None:
    """So the wheel of these tests is the output of the build stage."""
    copied = [words.split() for words in stages()["build"].all("COPY")]
    assert {name for words in copied for name in words[:-1]} == {*SOURCES, "requirements-build.lock"}


def test_the_wheel_is_built_by_what_is_locked() -> None:
    (built,) = stages()["build"].all("RUN")
    assert "--no-deps --require-hashes -r requirements-build.lock" in built
    assert "--no-build-isolation" in built


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    for stage in stages().values():
        for words in (rest.split() for rest in stage.all("COPY")):
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in stages()
                continue
            for name in words[:-1]:
                assert (ROOT / name).exists(), name
                assert name in allowed, name
    for name in allowed:
        assert name in DOCKERFILE.read_text(encoding="utf-8")


def test_the_wheel_has_everything_that_is_read_beside_the_code(wheel: Path) -> None:
    """The files of the packages that are no source: templates, scripts, SQL, weights, markers."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    here = subprocess.run(
        ["git", "ls-files", "engine", "gateway", "kernels", "migrations"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    assert here
    assert sorted(name for name in here if (ROOT / name).exists() and name not in packed) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler: apt-get install g++")
def test_the_wheel_has_the_native_kernels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if re.fullmatch(r"kernels/cpu/native/_kernels\..*\.so", name)]


def test_the_source_distribution_has_all_that_the_native_kernels_are_built_from(tmp_path: Path) -> None:
    program = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
    source = tmp_path / "src"
    names = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
    shutil.copytree(ROOT / "kernels", source / "kernels", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in names:
        shutil.copy(ROOT / name, source / name)
    done = subprocess.run([sys.executable, "-c", program, tmp_path], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(tmp_path.glob("turnpike-*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    files = (path for path in (ROOT / "kernels" / "cpu" / "native" / "src").rglob("*") if path.is_file())
    needed = {str(path.relative_to(ROOT)) for path in files}
    assert any(name.endswith(".cpp") for name in needed)
    assert {*names, *needed} <= packed


def test_the_wheel_knows_the_small_model_that_ships(wheel: Path, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    program = (
        "import engine.catalog.catalog as catalog, pathlib; print(catalog.__file__);"
        "print(*(entry.name for entry in catalog.available(pathlib.Path('none'))))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    file, models = done.stdout.splitlines()
    assert Path(file).is_relative_to(packages)
    assert models.split() == ["smollm2", "smollm2-small"]
