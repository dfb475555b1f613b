"""Files of adapters for tests of the gateway, and a stand-in for the engine's check of them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.adapters.source import AdapterFacts
from gateway.adapters.files import CONFIG_FILE, FILES, WEIGHTS_FILE, AdapterFiles
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.limits import AdapterLimits
from gateway.adapters.records import Adapter

BASES = ("tiny", "org/tiny-2")


def adapter_files(weights: bytes = b"weights", rank: int = 8) -> dict[str, bytes]:
    """The two files, by name; not real weights."""
    config = json.dumps({"r": rank, "peft_type": "LORA", "base_model_name_or_path": "tiny"}).encode()
    return {CONFIG_FILE: config, WEIGHTS_FILE: weights}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def stated(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The files as an upload states them."""
    return [
        {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]


async def check(folder: Path, model: Path, *, max_rank: int, max_bytes: int) -> AdapterFacts:
    """In the place of `engine.adapters.checker.check_adapter`: refuses by the rank, and weights of `bad`."""
    contents = [(folder / name).read_bytes() for name in FILES]
    config = json.loads(contents[0])
    if config["r"] > max_rank:
        raise ValueError(f"adapter_config.json: r is {config['r']}, more than {max_rank}")
    if contents[1] == b"bad":
        raise ValueError("adapter_model.safetensors: layers.0.q_proj.lora_A.weight has a NaN")
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    return AdapterFacts(digest, config["r"], ("q_proj", "v_proj"), 1000, sum(map(len, contents)), "tiny")


def hosting(folder: Path, **others: Any) -> AdapterHosting:
    """Hosting in a folder, with small bounds."""
    made: dict[str, Any] = {
        "models": {name: Path(name) for name in BASES},
        "is_taken": {*BASES, "auto"}.__contains__,
        "max_rank": 64,
        "max_bytes": 10_000,
        "limits": AdapterLimits(3, 20_000),
        "check": check,
    }
    return AdapterHosting(AdapterFiles(folder), **made | others)


class FixedAdapters:
    """A source for `AdapterBook`."""

    def __init__(self, adapters: Sequence[Adapter] = ()) -> None:
        self.stated = tuple(adapters)
        self.reads = 0

    async def revision(self) -> int:
        return hash(self.stated and tuple((each.id, str(each.weights), str(each.versions)) for each in self.stated))

    async def adapters(self) -> Sequence[Adapter]:
        self.reads += 1
        return self.stated
