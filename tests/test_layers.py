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
TEST_ONLY = {"transformers", "pytest", "hypothesis", "httpx", "openai", "tests"}
FILES = [path for package in ("gateway", "engine", "kernels", "migrations") for path in (ROOT / package).rglob("*.py")]


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


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
