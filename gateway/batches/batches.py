"""`Batches`: the parts that the endpoints and the runner of batches share."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from gateway.batches.store import BatchStore
from gateway.config.files import StatedBatches
from gateway.tenancy.authenticator import KeySource
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class Batches:
    """`keys`: principals by the public ids of keys. `folder`: of results. `created`: set when this gateway creates or
    cancels a batch, so that its runner need not wait."""

    store: BatchStore
    keys: KeySource[Principal]
    folder: Path
    settings: StatedBatches
    max_line_bytes: int
    created: asyncio.Event = field(default_factory=asyncio.Event)
