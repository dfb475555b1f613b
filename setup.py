"""The native CPU kernels, built where there is a C++ compiler; without one everything computes on torch.

All else about the package is in pyproject.toml.
"""

from glob import glob

from setuptools import Extension, setup

SOURCES = "kernels/cpu/native/src"

setup(
    ext_modules=[
        Extension(
            "kernels.cpu.native._kernels",
            sources=sorted(glob(f"{SOURCES}/*.cpp")),
            depends=sorted(glob(f"{SOURCES}/*.h")),
            extra_compile_args=["-std=c++17", "-O3", "-fno-math-errno", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"],
            language="c++",
            optional=True,
        )
    ]
)
