"""The native CPU kernels, built where there is a C++ compiler; without one everything computes on torch.

The library uses nothing of Python. It is tagged with the stable ABI: one wheel serves every Python from 3.11 on.
All else about the package is in pyproject.toml.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "kernels/cpu/native/src"
BUILT = Path(SOURCES, "../_kernels.abi3.so")
"""What `make native` builds, for the checkout itself."""


class BuildOnAllCores(build_ext):
    """setuptools compiles the files of an extension one after another."""

    def run(self):
        if not (self.editable_mode and self._is_built()):
            super().run()

    def _is_built(self):
        sources = (path for path in Path(SOURCES).rglob("*") if path.is_file())
        return BUILT.exists() and BUILT.stat().st_mtime >= max(path.stat().st_mtime for path in sources)

    def build_extensions(self):
        compile_all = self.compiler.compile

        def compile(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                each = pool.map(lambda source: compile_all([source], **options), sources)
                return [made for objects in each for made in objects]

        self.compiler.compile = compile
        super().build_extensions()


setup(
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    cmdclass={"build_ext": BuildOnAllCores},
    ext_modules=[
        Extension(
            "kernels.cpu.native._kernels",
            sources=sorted(glob(f"{SOURCES}/**/*.cpp", recursive=True)),
            depends=sorted(glob(f"{SOURCES}/**/*.h", recursive=True) + glob(f"{SOURCES}/**/*.inl", recursive=True)),
            include_dirs=[SOURCES],
            extra_compile_args=[
                *("-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fvisibility=hidden", "-pthread"),
                *("-Wall", "-Wextra", "-Wno-psabi"),
            ],
            extra_link_args=["-pthread"],
            language="c++",
            py_limited_api=True,
            optional=True,
        )
    ],
)
