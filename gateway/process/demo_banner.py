"""The first page of `turnpike serve --demo`: printed once the server is ready, on standard output and nowhere else."""

import shlex
from pathlib import Path

import orjson

DEMO_QUESTION = "What is the capital of France?"


def demo_banner(url: str, model: str, key: str, data_dir: Path, models_dir: Path) -> str:
    """The key, a first request, addresses to open, folders of the data, and how to stop and reset.

    A shell reads the first block as it stands. Lines have at most 80 characters, except those with a long path, URL or
    name. The banner contains `key`: it must not be logged.
    """
    return "\n\n".join(
        (f"\nTurnpike is ready at {url}", _commands(url, model, key), _places(url, data_dir, models_dir))
    )


def _commands(url: str, model: str, key: str) -> str:
    """Commands for the shell: the key as a variable, and a streamed request that states no sampling parameters."""
    message = orjson.dumps({"role": "user", "content": DEMO_QUESTION}).decode()
    body = f'{{"model": {orjson.dumps(model).decode()}, "stream": true,\n  "messages": [{message}]}}'
    return "\n".join(
        (
            f"export TURNPIKE_KEY={shlex.quote(key)}",
            f"curl -N {url}/v1/chat/completions \\",
            '  -H "Authorization: Bearer $TURNPIKE_KEY" \\',
            '  -H "Content-Type: application/json" \\',
            f"  -d {shlex.quote(body)}",
        )
    )


def _places(url: str, data_dir: Path, models_dir: Path) -> str:
    """Where to look next, a line each."""
    lines = {
        "console": f"{url}/console",
        "reference": f"{url}/docs",
        "data": f"{data_dir}",
        "models": f"{models_dir}",
        "stop": "Ctrl-C",
        "reset": f"stop, then rm -r {shlex.quote(str(data_dir))}",
    }
    return "\n".join(f"{name:<11}{text}" for name, text in lines.items()) + "\n"
