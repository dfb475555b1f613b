"""Tables of the README hold what the tests try."""

import re
import tomllib
from pathlib import Path

from tests.e2e.clients.environments import ENVIRONMENTS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
OURS = ("openai", "anthropic")
"""Clients that the tests of the project's own environment use."""


def tried_versions() -> set[tuple[str, str]]:
    """Name in the README and version of every client that a test starts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = dict(each.split("==") for each in project["optional-dependencies"]["dev"] if "==" in each)
    versions = {(f"{name} (Python)", pins[name]) for name in OURS}
    for environment in ENVIRONMENTS:
        [requirement] = environment.requirements
        name, version = re.split("==|@", requirement)
        versions.add(("openai (Node)" if environment.name == "node" else name.partition("[")[0], version))
    return versions


def test_the_table_of_clients_is_what_the_tests_try() -> None:
    _, _, table = README.partition("| client | version | tried |")
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", table.partition("\n\n")[0], re.MULTILINE)
    assert set(rows) == tried_versions()


def test_a_newcomer_reads_little_before_the_rest() -> None:
    first, mark, _ = README.partition("\n## More\n")
    assert mark
    assert first.count("\n") <= 120
