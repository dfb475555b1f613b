"""From the command to the first answer, and where that time goes: `python -m benchmarks.start`.

Runs `turnpike serve` with a fresh data folder and asks for one token until it answers. `--model` takes a folder or a
GGUF file in place of the small model; `--cold` has the system forget the weights before each start. On a busy machine
read the least of the rounds, and the processor time, which has no waiting in it.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from engine.catalog.catalog import fetch
from gateway.config.settings import Settings
from tests.support.servers import free_port

ROUNDS = 3
PHASES = {"imports and opening": "loading model: ", "weights": " has KV memory for ", "services": '"ready"'}
"""End of each phase in the server's output; `first token` follows."""


@dataclass(frozen=True, slots=True)
class Start:
    """`ends_s`: seconds from the command to the end of each phase. MiB resident after the first answer, at most until
    then, and the share of the former that are files and so can be dropped. `cpu_s`: processor time of all threads."""

    ends_s: dict[str, float]
    cpu_s: float
    resident_mib: float
    peak_mib: float
    files_mib: float

    def __str__(self) -> str:
        before_s, phases = 0.0, []
        for phase, end_s in self.ends_s.items():
            phases.append(f"{phase} {end_s - before_s:.2f}")
            before_s = end_s
        memory = f"{self.resident_mib:.0f} MiB resident, {self.files_mib:.0f} of them mapped files"
        spent = f"first answer after {before_s:.2f} s ({', '.join(phases)}), {self.cpu_s:.2f} of a processor"
        return f"{spent}; {memory}; {self.peak_mib:.0f} at most"


def start(model: Path, quantize: str, data_dir: Path) -> Start:
    """One start of a server on the model, up to its first answer."""
    turnpike = str(Path(sys.executable).with_name("turnpike"))
    folder = ("--data-dir", str(data_dir))

    def call(*words: str) -> str:
        return subprocess.run([turnpike, *words, *folder], check=True, capture_output=True, text=True).stdout.strip()

    call("tenant", "create", "bench", "--tier", "standard")
    call("price", "set", "model", "--input", "1", "--output", "1")
    headers = {"authorization": f"Bearer {call('key', 'create', '--tenant', 'bench')}"}
    body = {"model": "model", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    port = free_port()
    command = [turnpike, "serve", "--port", str(port), *folder, "--model", f"model={model}", "--quantize", quantize]
    began_s = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ends_s: dict[str, float] = {}
    reader = threading.Thread(target=_note_phases, args=(server, began_s, ends_s))
    reader.start()
    try:
        while True:
            try:
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                if httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200:
                    break
            except httpx.TransportError:
                if server.poll() is not None:
                    raise SystemExit(f"turnpike serve ended with status {server.returncode}") from None
            time.sleep(0.02)
        first_s = time.perf_counter() - began_s
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        resident, peak, files = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM", "RssFile"))
    finally:
        server.terminate()
        server.wait()
        reader.join()
    return Start({**ends_s, "first token": first_s}, cpu_s, resident, peak, files)


def _note_phases(server: "subprocess.Popen[str]", began_s: float, ends_s: dict[str, float]) -> None:
    assert server.stderr is not None
    for line in server.stderr:
        for phase, mark in PHASES.items():
            if mark in line and phase not in ends_s:
                ends_s[phase] = time.perf_counter() - began_s


def _forget(model: Path) -> None:
    for path in model.iterdir() if model.is_dir() else (model,):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--model", type=Path, help="[the small model]")
    parser.add_argument("--quantize", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cold", action="store_true")
    given = parser.parse_args()
    model = given.model or fetch("smollm2", Settings().models_dir)
    print(f"turnpike serve, {model.name}, quantize {given.quantize}{', cold' if given.cold else ''}")
    starts = []
    for _ in range(given.rounds):
        if given.cold:
            _forget(model)
        with tempfile.TemporaryDirectory() as data_dir:
            starts.append(start(model, given.quantize, Path(data_dir)))
            print(f"  {starts[-1]}", flush=True)
    first_s, cpu_s = min(each.ends_s["first token"] for each in starts), min(each.cpu_s for each in starts)
    print(f"least of {len(starts)}: first answer after {first_s:.2f} s, {cpu_s:.2f} of a processor")


if __name__ == "__main__":
    main()
