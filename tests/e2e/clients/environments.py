"""One folder a client: their pins clash with each other's and with ours. `make clients` makes them all."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("TEST_CLIENTS") or HERE.parents[2] / ".clients")
_MADE = "made-of"
"""In a client's folder: the requirements that it was made of, written when it was complete."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A client's packages, and its script, which runs there."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def is_made(self) -> bool:
        made = self.folder / _MADE
        return made.exists() and made.read_text() == "\n".join(self.requirements)

    def make(self) -> None:
        """Raises CalledProcessError: a package cannot be installed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._install()
        (self.folder / _MADE).write_text("\n".join(self.requirements))

    def made_folder(self) -> Path:
        """The folder. Skips the test where the environment has not been made."""
        if not self.is_made:
            pytest.skip(f"`make clients` makes the environment of {self.name}")
        return self.folder

    def command(self) -> list[str]:
        """The command that runs the script. Skips the test as `made_folder` does."""
        self.made_folder()
        return self._command()

    def _install(self) -> None:
        """By uv, in a fifteenth of pip's processor time; by pip where uv fails, as uv knows no index or certificate of
        pip's configuration."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.folder], check=True)
        python, uv = str(self.folder / "bin" / "python"), Path(sys.executable).with_name("uv")
        by_uv = [str(uv), "--quiet", "--no-cache", "pip", "install", "--python", python]
        if uv.exists() and subprocess.run([*by_uv, *self.requirements], check=False).returncode == 0:
            return
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-compile", *self.requirements], check=True)

    def _command(self) -> list[str]:
        return [str(self.folder / "bin" / "python"), str(HERE / "scripts" / f"{self.name}_client.py")]


class NodeEnvironment(Environment):
    """The script is an ES module, which finds packages in its own folder only: a copy of it lies with them."""

    __slots__ = ()

    def _install(self) -> None:
        npm = shutil.which("npm")
        assert npm is not None, "npm is not installed"
        subprocess.run([npm, "install", "--silent", "--no-fund", *self.requirements], cwd=self.folder, check=True)

    def _command(self) -> list[str]:
        script = self.folder / "client.mjs"
        script.write_bytes((HERE / "scripts" / f"{self.name}_client.mjs").read_bytes())
        return ["node", str(script)]


class NewestRelease(Environment):
    """A package that we have, too, in its newest release and without what it depends on: a folder for `PYTHONPATH`."""

    __slots__ = ()

    def _install(self) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", self.folder, *self.requirements], check=True)


ENVIRONMENTS: tuple[Environment, ...] = (
    Environment("litellm", ("litellm[mcp]==1.106.2",)),
    Environment("langchain", ("langchain-openai==1.7.3",)),
    Environment("llama_index", ("llama-index-llms-openai-like==0.8.1",)),
    Environment("pydantic_ai", ("pydantic-ai-slim[openai]==2.68.0",)),
    Environment("smolagents", ("smolagents[openai]==1.26.0",)),
    NodeEnvironment("node", ("openai@6.49.0",)),
)
NEWEST_UVICORN = NewestRelease("uvicorn", ("uvicorn",))
