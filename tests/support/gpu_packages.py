"""A machine with a GPU that has few packages: all others are hidden from imports.

As a pytest plugin (`-p tests.support.gpu_packages`) or by `hide_others()`, before anything else is imported.
"""

import re
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import pytest

PACKAGES = ("torch", "triton", "numpy", "ml-dtypes", "safetensors", "tokenizers", "jinja2", "transformers")
"""Packages that a GPU check needs. Images with PyTorch have these."""
OF_TESTS = ("pytest", "anyio", "hypothesis")

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def hide_others() -> None:
    """Let imports find nothing but the standard library, this project, `PACKAGES`, `OF_TESTS` and what these need."""
    shown = _Shown(_with_requirements((*PACKAGES, *OF_TESTS)))
    sys.meta_path[:] = [shown if finder is PathFinder else finder for finder in sys.meta_path]


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    hide_others()


class _Shown(MetaPathFinder):
    """Finds what is on the path, except for modules of distributions other than `shown`."""

    def __init__(self, shown: set[str]) -> None:
        self._owners = metadata.packages_distributions()
        self._shown = shown | {"turnpike", "setuptools"}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        owners = {_normal(each) for each in self._owners.get(fullname.partition(".")[0], ())}
        if owners and not owners & self._shown:
            return None
        return PathFinder.find_spec(fullname, path, target)

    find_distributions = staticmethod(PathFinder.find_distributions)


def _with_requirements(names: Sequence[str]) -> set[str]:
    """The distributions and all that they need, extras left out."""
    found: set[str] = set()
    rest = list(names)
    while rest:
        name = _normal(rest.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform
            continue
        rest += [match[0] for each in needs if "extra ==" not in each and (match := _NAME.match(each))]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
