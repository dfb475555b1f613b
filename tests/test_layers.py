"""gateway -> engine -> kernels, never back; the scheduler and the allocator know no torch; tests share by `support`."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_NOT_IMPORT = {"kernels": {"engine", "gateway", "migrations"}, "engine": {"gateway", "migrations"}}
ON_A_GPU = "kernels/triton/"
MAY_NAME_IT = {"kernels/dispatch.py", "kernels/gpu.py"}
"""Modules that may import Triton kernels: without a GPU, neither they nor triton are needed."""
TEST_ONLY = {"transformers", "peft", "pytest", "hypothesis", "httpx", "openai", "tests"}
PARENTS = {"gateway", "gateway.management", "engine", "kernels"}
"""Folders whose own folders are packages."""
FILES = [path for package in ("gateway", "engine", "kernels", "migrations") for path in (ROOT / package).rglob("*.py")]


def imported_modules(path: Path, *, for_types: bool = True) -> set[str]:
    """`for_types`: those under `if TYPE_CHECKING`, too."""
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = (
        set() if for_types else {node for block in ast.walk(tree) if is_for_types(block) for node in ast.walk(block)}
    )
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported_packages(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported_modules(path)}


def test_imports_point_one_way() -> None:
    offenders = {}
    for path in FILES:
        package = path.relative_to(ROOT).parts[0]
        if forbidden := imported_packages(path) & (MAY_NOT_IMPORT.get(package, set()) | TEST_ONLY):
            offenders[path.relative_to(ROOT).as_posix()] = forbidden
    assert not offenders


def test_packages_import_one_another_without_a_circle() -> None:
    """A package is a folder directly below one of `PARENTS`, with all that is in it; a file there is one of its own.
    Imports for type checking alone do not count."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    imports: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = imported_modules(path, for_types=False) & modules.keys()
        imports.setdefault(package_of(module), set()).update(map(package_of, named - PARENTS))
    for package, others in imports.items():
        others.discard(package)
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def package_of(module: str) -> str:
    return ".".join(module.split(".")[: 3 if module.startswith("gateway.management.") else 2])


@pytest.mark.parametrize("package", ["engine.memory", "engine.planning", "engine.scheduling", "engine.simulation"])
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


def test_tests_and_benchmarks_share_what_they_share_in_support() -> None:
    """No test module imports another one or a conftest; benchmarks and examples import of the tests only
    `tests.support`."""
    offenders = {}
    for folder in ("tests", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            modules = {module for module in imported_modules(path) if module.startswith("tests.")}
            if folder == "tests":
                modules = {module for module in modules if is_test_module(module)}
            else:
                modules = {module for module in modules if package_of(module) != "tests.support"}
            if modules:
                offenders[path.relative_to(ROOT).as_posix()] = modules
    assert not offenders


def is_test_module(module: str) -> bool:
    return any(part == "conftest" or part.startswith("test_") for part in module.split("."))


def test_only_the_gpus_kernels_need_triton() -> None:
    offenders = []
    for path in FILES:
        name, modules = path.relative_to(ROOT).as_posix(), imported_modules(path)
        if name.startswith(ON_A_GPU):
            continue
        names_kernels = any(module.startswith("kernels.triton") for module in modules)
        if any(module.split(".")[0] == "triton" for module in modules) or (names_kernels and name not in MAY_NAME_IT):
            offenders.append(name)
    assert not offenders


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
