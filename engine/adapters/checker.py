"""Checks an adapter's files against its base model in a process of its own, whose time and memory are bounded.

`python -m engine.adapters.checker` is that process: it prints one JSON object, the facts or what is `refused`.
"""

import asyncio
import json
import logging
import resource
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from engine.adapters.child_process import environment
from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import WEIGHTS, digest_of, read_adapter
from engine.adapters.peft_config import CONFIG
from engine.adapters.source import AdapterFacts
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import UnsupportedCheckpoint

logger = logging.getLogger(__name__)

CHECK_SECONDS = 120.0
"""Time limit of one check."""
_BASE_MEMORY_BYTES = 6 << 30
"""Address space of the process without the adapter's numbers: its libraries and maps of the base model's files."""
_NUMBERS_PER_BYTE = 12
"""Bytes of address space for each byte of weights: mapped, converted and scaled in float32."""


async def check_adapter(
    folder: Path, model: Path, *, max_rank: int, max_bytes: int, seconds: float = CHECK_SECONDS
) -> AdapterFacts:
    """Check a PEFT folder against the checkpoint of its base model.

    Raises:
        UnsupportedAdapter: it cannot be served with this model, or checking it takes too long or too much memory.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "engine.adapters.checker",
        *(str(folder), str(model), str(max_rank), str(max_bytes)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise UnsupportedAdapter(f"checking the adapter takes over {seconds:g} s") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode or not output:
        logger.error("the check of an adapter failed: %s", errors.decode(errors="replace")[-2000:])
        raise UnsupportedAdapter("the adapter cannot be checked: its files take too much memory, or are damaged")
    answer = json.loads(output)
    if "refused" in answer:
        raise UnsupportedAdapter(answer["refused"])
    return AdapterFacts(**{**answer, "targets": tuple(answer["targets"])})


def facts_of(folder: Path, model: Path, max_rank: int, max_bytes: int) -> AdapterFacts:
    """The same in this process.

    Raises:
        UnsupportedAdapter: it cannot be served with this model.
    """
    config = open_checkpoint(model).config
    weights, settings, targets = read_adapter(folder, config, max_rank=max_rank, max_bytes=max_bytes)
    size = sum((folder / name).stat().st_size for name in (CONFIG, WEIGHTS))
    return AdapterFacts(digest_of(folder), weights.rank, targets, weights.parameters, size, settings.base_model)


def main() -> None:
    """The process that checks."""
    folder, model, max_rank, max_bytes = sys.argv[1:]
    memory_bytes = _BASE_MEMORY_BYTES + Path(model).stat().st_size + _NUMBERS_PER_BYTE * int(max_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    try:
        answer = asdict(facts_of(Path(folder), Path(model), int(max_rank), int(max_bytes)))
    except (UnsupportedAdapter, UnsupportedCheckpoint) as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"refused": "checking the adapter takes too much memory"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
