"""gateway -> engine -> kernels, never back; the scheduler and the allocator know no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_NOT_IMPORT = {
    "kernels": {"engine", "gateway", "migrations"},
    "engine": {"gateway", "migrations"},
}
ON_A_GPU = "kernels/triton/"
MAY_NAME_IT = {"kernels/dispatch.py"}
"""What may import Triton kernels: they are not to be needed, nor triton, where there is no GPU."""
TEST_ONLY = {"transformers", "pytest", "hypothesis", "httpx", "openai", "tests"}
FILES = [path for package in ("gateway", "engine", "kernels", "migrations") for path in (ROOT / package).rglob("*.py")]


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def imported_packages(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported_modules(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    forbidden = MAY_NOT_IMPORT.get(package, set()) | TEST_ONLY
    assert not imported_packages(path) & forbidden


@pytest.mark.parametrize("package", ["engine.memory", "engine.scheduling", "engine.simulation"])
def test_scheduling_needs_no_torch(package: str) -> None:
    program = f"""
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert "torch" not in sys.modules, "torch came in"
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_gpus_kernels_need_triton(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if name.startswith(ON_A_GPU):
        return
    modules = imported_modules(path)
    assert not any(module.split(".")[0] == "triton" for module in modules)
    assert name in MAY_NAME_IT or not any(module.startswith("kernels.triton") for module in modules)


def test_everything_but_the_gpus_kernels_is_imported_without_triton() -> None:
    program = f"""
import importlib, importlib.abc, pkgutil, sys

class NoTriton(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError("there is no triton here", name=name)

NO_MODULES = ("__main__", "native._kernels")  # a program, and a library that is none of Python's
sys.meta_path.insert(0, NoTriton())
count = 0
for root in ("gateway", "engine", "kernels"):
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if module.name.endswith(NO_MODULES) or (module.name + ".").startswith({ON_A_GPU.replace("/", ".")!r}):
            continue
        importlib.import_module(module.name)
        count += 1
assert count > 150, count
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
