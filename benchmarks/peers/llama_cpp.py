"""llama.cpp's server, built from the sources that the llama-cpp-python package carries."""

import shutil
import sys
import tarfile
from pathlib import Path

from benchmarks.peers.environment import InstallError, Step, call, root

VERSION = "0.3.36"
_OPTIONS = ("CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=OFF", "LLAMA_OPENSSL=OFF", "LLAMA_USE_PREBUILT_UI=OFF")
_LEFT_OUT = ("TESTS", "EXAMPLES", "APP")
_EXTENSIONS = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
"""Flags of a processor, and what the build calls them."""


def folder() -> Path:
    return root() / f"llama.cpp-{VERSION}"


def _sources(folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps")
    call(folder, *pip, "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}")
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        for member in archive:
            _, inside, path = member.name.partition("/vendor/llama.cpp/")
            if inside:
                member.name = f"sources/{path}"
                archive.extract(member, folder, filter="data")


def _configure(folder: Path) -> None:
    options = [*_OPTIONS, *(f"LLAMA_BUILD_{each}=OFF" for each in _LEFT_OUT), *_processor(_flags())]
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    call(folder, "cmake", "-S", "sources", "-B", "build", *generator, *(f"-D{each}" for each in options))


def _build(folder: Path) -> None:
    call(folder, "nice", "-n", "19", "cmake", "--build", "build", "--target", "llama-server", "-j", "2")
    if not server().exists():
        raise InstallError(f"the build has not made {server()}")


STEPS: tuple[Step, ...] = (("sources", _sources), ("configure", _configure), ("build", _build))


def _processor(flags: set[str]) -> list[str]:
    """All that this processor has, but for AMX: llama.cpp's path for that dies here of an illegal instruction."""
    if not any(flag.startswith("amx") for flag in flags):
        return ["GGML_NATIVE=ON"]
    return ["GGML_NATIVE=OFF", *(f"GGML_{name}=ON" for flag, name in _EXTENSIONS.items() if flag in flags)]


def server() -> Path:
    return folder() / "build" / "bin" / "llama-server"


def command(model: Path, port: int, *, context: int, sequences: int, threads: int) -> list[str]:
    """`context` is of each sequence."""
    return [
        *(str(server()), "--model", str(model), "--alias", "model", "--host", "127.0.0.1", "--port", str(port)),
        *("--threads", str(threads), "--threads-batch", str(threads)),
        *("--parallel", str(sequences), "--ctx-size", str(context * sequences)),
    ]


def _flags() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return set()
