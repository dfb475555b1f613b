"""From the command to the first answer, on a warm disk: `python -m benchmarks.start`.

Runs `turnpike serve` on the small model with a fresh data folder and asks for one token until it answers.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from engine.models.catalog import fetch
from gateway.settings import Settings

ROUNDS = 3
PORT = 18431


def first_answer_seconds(data_dir: Path) -> tuple[float, float, float]:
    """Seconds to the first answer; resident MiB after it, and the share of it that are files and so can be dropped."""
    turnpike = str(Path(sys.executable).with_name("turnpike"))
    folder = ("--data-dir", str(data_dir))
    subprocess.run(
        [turnpike, "tenant", "create", "bench", "--tier", "standard", *folder], check=True, capture_output=True
    )
    made = subprocess.run([turnpike, "key", "create", "--tenant", "bench", *folder], check=True, capture_output=True)
    headers = {"authorization": f"Bearer {made.stdout.decode().strip()}"}
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    started = time.perf_counter()
    command = [turnpike, "serve", "--port", str(PORT), *folder]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
                if httpx.post(url, json=body, headers=headers, timeout=10).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.02)
        seconds = time.perf_counter() - started
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if ":" in line
        )
        resident, files = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "RssFile"))
        return seconds, resident, files
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    fetch("smollm2", Settings().models_dir)
    print("turnpike serve, SmolLM2-135M, second and later starts (first answer within 5 s)")
    for attempt in range(1 + ROUNDS):
        with tempfile.TemporaryDirectory() as data_dir:
            seconds, resident, files = first_answer_seconds(Path(data_dir))
        if attempt:
            print(
                f"  first answer after {seconds:.2f} s; {resident:.0f} MiB resident, {files:.0f} of them mapped files"
            )


if __name__ == "__main__":
    main()
