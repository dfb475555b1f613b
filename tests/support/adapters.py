"""Files of adapters for tests of the gateway, and a stand-in for the engine's check of them."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from engine.adapters.source import AdapterFacts
from gateway.adapters.book import AdapterBook
from gateway.adapters.files import CONFIG_FILE, FILES, WEIGHTS_FILE, AdapterFiles
from gateway.adapters.hosting import AdapterHosting
from gateway.adapters.limits import AdapterLimits
from gateway.adapters.records import Adapter, AdapterVersion

BASES = ("tiny", "org/tiny-2")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def adapter_files(weights: bytes = b"weights", rank: int = 8) -> dict[str, bytes]:
    """The two files, by name; not real weights."""
    config = json.dumps({"r": rank, "peft_type": "LORA", "base_model_name_or_path": "tiny"}).encode()
    return {CONFIG_FILE: config, WEIGHTS_FILE: weights}


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def stated(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The files as an upload states them."""
    return [{"name": name, "bytes": len(content), "sha256": digest_of(content)} for name, content in files.items()]


async def check(folder: Path, model: Path, *, max_rank: int, max_bytes: int) -> AdapterFacts:
    """In the place of `engine.adapters.checker.check_adapter`: refuses by the rank, and weights of `bad`."""
    contents = [(folder / name).read_bytes() for name in FILES]
    config = json.loads(contents[0])
    if config["r"] > max_rank:
        raise ValueError(f"adapter_config.json: r is {config['r']}, more than {max_rank}")
    if contents[1] == b"bad":
        raise ValueError("adapter_model.safetensors: layers.0.q_proj.lora_A.weight has a NaN")
    digest = digest_of(b"".join(contents))
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


def adapter(
    tenant_id: str,
    name: str,
    model: str = "tiny",
    *,
    weights: dict[int, int] | None = None,
    multiplier: str = "1",
) -> Adapter:
    """An adapter with a version for each weight; by default one."""
    weights = weights or {1: 100}
    versions = tuple(
        AdapterVersion(number, digest_of(f"{tenant_id} {name} {number}".encode()), 8, (), 1, 1, LONG_AGO)
        for number in weights
    )
    return Adapter(
        f"{name}:{tenant_id}", tenant_id, name, model, LONG_AGO, versions, weights, None, Decimal(multiplier)
    )


def book_of(*adapters: Adapter) -> AdapterBook:
    """A book of these adapters, loaded."""
    book = AdapterBook(FixedAdapters(adapters), AdapterFiles(Path("/adapters")))
    asyncio.run(book.load())
    return book
