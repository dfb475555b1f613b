"""Resident memory of a server, by kind: `python -m benchmarks.resident [--model NAME=PATH] [--serve-options ...]`.

Runs `turnpike serve` in a fresh data folder and reads the kernel's account of its memory (`/proc/PID/smaps`) after its
first answer, and again after requests of 32 clients at once. Resident is what the process has in memory; of pages that
several processes share, proportional counts a share; anonymous pages exist nowhere else, the others are of files and
can be dropped. Weights and KV are identified by the advice for their pages (huge for weights, small for KV).
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PORT = 18432
CLIENTS = 32
ROUNDS = 2
ANSWER_TOKENS = 64
_QUESTION = "Tell me a story of a lighthouse, its keeper, and the sea. "
_KEYS = {"Rss:": "resident", "Pss:": "proportional", "Anonymous:": "anonymous"}
_ADVISED = {"hg": "weights", "nh": "KV"}
_LARGE_KIB = 1024
_REST = "over weights and KV"


@dataclass(slots=True)
class Resident:
    """KiB."""

    resident: int = 0
    proportional: int = 0
    anonymous: int = 0

    def line(self, name: str) -> str:
        mib = [each / 1024 for each in (self.resident, self.proportional, self.anonymous)]
        return f"  {name:<34} {mib[0]:7.0f} {mib[1]:7.0f} {mib[2]:7.0f} {mib[0] - mib[2]:7.0f}"


def resident_by_part(pid: int) -> dict[str, Resident]:
    """The memory of a process by what its mappings are, largest first, "all", and what is over weights and KV."""
    parts: dict[str, Resident] = {"all": Resident()}
    for path, flags, values in _mappings(Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8")):
        name = _ADVISED.get(flags) or _part(path, values.get("Rss:", 0))
        for part in (parts.setdefault(name, Resident()), parts["all"]):
            for key, field in _KEYS.items():
                setattr(part, field, getattr(part, field) + values.get(key, 0))
    rest = parts[_REST] = Resident()
    for field in _KEYS.values():
        counted = sum(getattr(parts[name], field) for name in _ADVISED.values() if name in parts)
        setattr(rest, field, getattr(parts["all"], field) - counted)
    return dict(sorted(parts.items(), key=lambda each: -each[1].resident))


def _mappings(smaps: str) -> Iterator[tuple[str, str, dict[str, int]]]:
    """The path of each mapping, what was advised for its pages ("hg", "nh" or nothing), and its values in KiB."""
    path, advised, values = "", "", dict[str, int]()
    for line in smaps.splitlines():
        words = line.split()
        if words[0] == "VmFlags:":
            advised = next((flag for flag in words if flag in _ADVISED), "")
        elif words[0].endswith(":"):
            if words[-1] == "kB":
                values[words[0]] = int(words[1])
        else:
            if values:
                yield path, advised, values
            path, advised, values = " ".join(words[5:]), "", {}
    yield path, advised, values


def _part(path: str, resident_kib: int) -> str:
    file = path.rpartition("/")[2]
    if "chdb" in file:
        return "chDB's library"
    if "/torch" in path:
        return "torch's libraries"
    if file.endswith((".gguf", ".safetensors")):
        return "checkpoints"
    if ".so" in file:
        return "other libraries"
    if path == "[heap]" or (not path and resident_kib < _LARGE_KIB):
        return "heap and small mappings"
    if not path:
        return "other large mappings"
    return "other"


@contextmanager
def served(models: Sequence[str], options: Sequence[str]) -> Iterator[tuple[int, httpx.Client]]:
    """A server's process id and a client of it that has a key; up when it answers."""
    turnpike = str(Path(sys.executable).with_name("turnpike"))
    with tempfile.TemporaryDirectory() as data_dir:
        folder = ("--data-dir", data_dir)
        names = [each.partition("=")[0] for each in models]
        for arguments in (
            *(("price", "set", name, "--input", "0.1", "--output", "0.4") for name in names),
            ("tenant", "create", "bench", "--tier", "standard"),
        ):
            subprocess.run([turnpike, *arguments, *folder], check=True, capture_output=True)
        made = subprocess.run(
            [turnpike, "key", "create", "--tenant", "bench", *folder], check=True, capture_output=True
        )
        command = [turnpike, "serve", "--port", str(PORT), *folder, *options]
        for model in models:
            command += ["--model", model]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        headers = {"authorization": f"Bearer {made.stdout.decode().strip()}"}
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", headers=headers, timeout=60) as client:
                _await_answer(server, client, names[0] if names else "smollm2")
                yield server.pid, client
        finally:
            server.terminate()
            server.wait()


def _await_answer(server: subprocess.Popen[bytes], client: httpx.Client, model: str) -> None:
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    while server.poll() is None:
        try:
            if client.post("/v1/completions", json=body).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise SystemExit(f"the server ended with {server.returncode}")


async def load(client: httpx.Client, model: str) -> None:
    """Requests of all clients at once, some rounds of them; each prompt is another."""
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(
        base_url=client.base_url, headers=client.headers, timeout=300, limits=limits
    ) as concurrent:

        async def ask(number: int) -> None:
            body = {"model": model, "prompt": f"{number}. {_QUESTION * 8}", "max_tokens": ANSWER_TOKENS}
            (await concurrent.post("/v1/completions", json=body)).raise_for_status()

        for round_ in range(ROUNDS):
            await asyncio.gather(*(ask(round_ * CLIENTS + number) for number in range(CLIENTS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--model", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--quantize", choices=("none", "int8", "int4"), default="none")
    arguments = parser.parse_args()
    model = arguments.model[0].partition("=")[0] if arguments.model else "smollm2"
    options = [] if arguments.quantize == "none" else ["--quantize", arguments.quantize]
    with served(arguments.model, options) as (pid, client):
        _print("after the first answer", resident_by_part(pid))
        asyncio.run(load(client, model))
        _print(f"after {ROUNDS * CLIENTS} requests of {CLIENTS} clients", resident_by_part(pid))


def _print(moment: str, parts: dict[str, Resident]) -> None:
    print(f"{moment}, MiB {'resident':>20} {'prop.':>7} {'anon.':>7} {'files':>7}")
    for name, part in parts.items():
        print(part.line(name))


if __name__ == "__main__":
    main()
