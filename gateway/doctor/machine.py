"""Checks the machine and the installation, independently of the settings."""

import importlib.metadata
import importlib.util
import platform
import resource
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from gateway.config.settings import Settings
from gateway.doctor.finding import Finding, failure, ok, warning
from gateway.process.open_files import FEW_FILES
from kernels.cpu import native
from kernels.cpu.cores import usable_cores
from kernels.cpu.native_ops import computes_natively
from kernels.gpu import cuda_flaw, has_cuda_driver

_OURS = "turnpike"
_TOP_LEVEL = ("gateway", "engine", "kernels", "migrations")
_HOME = Path(__file__).resolve().parents[2]
_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
"""CPU features that the kernels use (x86, then Arm)."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def torch(_: Settings) -> Iterator[Finding]:
    """Import torch only if it would compute; otherwise read its version."""
    on = f"on Python {platform.python_version()}"
    if computes_natively() and not has_cuda_driver():
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            yield ok("torch", f"not installed {on}, nor needed: the native kernels compute")
            return
        yield ok("torch", f"{version} {on}, which serving leaves alone: the native kernels compute")
        return
    try:
        import torch
    except ImportError as error:
        yield failure("torch", str(error), "pip install 'turnpike[gpu]'" if has_cuda_driver() else "pip install torch")
        return
    yield ok("torch", f"{torch.__version__} {on}, {torch.get_num_threads()} threads")


def packages(_: Settings) -> Iterator[Finding]:
    try:
        required = importlib.metadata.requires("turnpike") or []
    except importlib.metadata.PackageNotFoundError:
        yield warning("packages", "turnpike itself is not installed as a package", "pip install -e . in its folder")
        return
    strangers = list(_other_versions(required))
    if strangers:
        yield warning(
            "packages",
            f"not in the versions that this needs: {', '.join(strangers)}",
            "pip install --force-reinstall turnpike, in an environment of its own",
        )
        return
    yield ok("packages", "in the versions that this needs")


def _other_versions(required: Sequence[str]) -> Iterator[str]:
    """Packages of the base that are missing or have another version than required."""
    for requirement in map(Requirement, required):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing ({requirement.specifier})"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name} {installed} ({requirement.specifier})"


def package_names(_: Settings) -> Iterator[Finding]:
    """Whether another distribution in the environment has a package of the same name as one of ours: pip installs both
    into one folder, and the later one overwrites the files of the earlier one."""
    owners = importlib.metadata.packages_distributions()
    others = {name: sorted({owner.lower() for owner in owners.get(name, ())} - {_OURS}) for name in _TOP_LEVEL}
    elsewhere = {name: path for name in _TOP_LEVEL if (path := _found_elsewhere(name)) is not None}
    if clashes := [f"{name} (of {', '.join(owners)})" for name, owners in others.items() if owners]:
        detail = f"another package in this environment has the same name: {'; '.join(clashes)}"
    elif elsewhere:
        detail = "; ".join(f"{name} is imported from {path}" for name, path in elsewhere.items())
    else:
        yield ok("package names", f"{', '.join(_TOP_LEVEL)} are of this installation alone")
        return
    yield failure("package names", detail, "install turnpike in an environment of its own: pipx, uv tool or a venv")


def _found_elsewhere(name: str) -> Path | None:
    """The folder of a package of ours, if Python finds it outside the folder that this code was imported from."""
    spec = importlib.util.find_spec(name)
    found = Path(spec.origin).resolve().parent if spec is not None and spec.origin is not None else None
    return found if found is not None and found.parent != _HOME else None


def cpu(_: Settings) -> Iterator[Finding]:
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        words = set()
    flags = " ".join(flag for flag in _CPU_FLAGS if flag in words) or "none of the vector extensions that we know"
    yield ok("CPU", f"{usable_cores()} cores, {flags}")


def compiler(_: Settings) -> Iterator[Finding]:
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            yield ok("C++ compiler", path)
            return
    if native.level() is not None:
        yield ok("C++ compiler", "none on the PATH, nor needed: the native kernels are built")
        return
    yield warning("C++ compiler", "none on the PATH", "apt-get install --no-install-recommends g++")


def native_kernels(_: Settings) -> Iterator[Finding]:
    """The native kernels: built with the package if there is a compiler; CPU features are detected at run time."""
    level = native.level()
    if level is None:
        yield warning(
            "native kernels",
            "not built: the CPU computes with torch alone, at a fraction of the speed; quantised files are expanded in "
            "memory, and quantize is refused",
            "with a C++ compiler there, pip install --force-reinstall --no-deps turnpike (or make install)",
        )
    elif level is native.Level.PORTABLE:
        yield warning(
            "native kernels",
            "built, at level PORTABLE: this processor has neither AVX2 nor AVX-512 with bf16",
            "a processor with one of them is several times as fast",
        )
    else:
        yield ok("native kernels", f"built, at level {level.name}")


def huge_pages(_: Settings) -> Iterator[Finding]:
    """Transparent huge pages, which the kernels' weights use to reduce TLB misses."""
    try:
        modes = _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        yield ok("huge pages", "nothing known of them here")
        return
    chosen = modes.partition("[")[2].partition("]")[0]
    if chosen == "never":
        yield warning(
            "huge pages",
            "switched off: weights are read more slowly",
            f"echo madvise > {_HUGE_PAGES}, as root on the host",
        )
        return
    yield ok("huge pages", f"for weights ({chosen})")


def gpu(settings: Settings) -> Iterable[Finding]:
    """The GPU, on which the kernels' self-test runs unless models are to run on the CPU."""
    if settings.device == "cpu":
        return [ok("GPU", "not asked for: device is cpu")]
    flaw = cuda_flaw()
    if flaw is None:
        import torch

        return [ok("GPU", f"{torch.cuda.get_device_name(0)}, on which the kernels pass their self-test")]
    if settings.device == "cuda":
        return [failure("GPU", f"device is cuda, which needs {flaw}", "set device to auto, or provide it")]
    if has_cuda_driver():
        return [warning("GPU", f"not used, models run on the CPU: it needs {flaw}", "provide it, or set device to cpu")]
    return [ok("GPU", "none: models run on the CPU")]


def open_files(_: Settings) -> Iterator[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # the server raises its soft limit to it
    if hard != resource.RLIM_INFINITY and hard < FEW_FILES:
        yield warning(
            "open files",
            f"at most {hard}, of which each connection takes one",
            "LimitNOFILE=65536 in the unit of systemd, or ulimit -Hn 65536 as root",
        )
        return
    yield ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}")
