"""Opens the second pool of a model's KV blocks on disk."""

import json
import logging
from collections.abc import Collection
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from engine.checkpoints.version import checkpoint_version
from engine.config import BLOCK_TOKENS, EngineConfig
from engine.memory.block_pool import BlockPool
from engine.memory.tiers import DiskStore, DiskUnavailable, KVTier, TierConfig
from engine.memory.tiers.store import file_of, remove_others
from engine.scheduling.block_fetches import computing_time
from engine.scheduling.cost import StepCostModel

logger = logging.getLogger(__name__)


def reason_against(
    config: EngineConfig, *, on_gpu: bool, ranks: bool, drafted: bool, recurrent: bool, groups: int
) -> str | None:
    """Why a model's KV cannot be kept on disk, or None. `drafted`: a draft model shares its blocks."""
    reasons = {
        "prefix_cache is off": not config.prefix_cache,
        "a GPU computes it": on_gpu,
        "several processes compute it": ranks,
        "its draft model's KV is in the same blocks": drafted,
        "it has recurrent states": recurrent,
        "its layers differ in their attention windows": groups > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def remove_stale_files(config: EngineConfig, models: Collection[str]) -> None:
    """Remove the stored KV of models that are not among these, so that the folder is bounded."""
    if config.kv_disk_folder is not None and config.kv_disk_folder.is_dir():
        remove_others(config.kv_disk_folder, models)


def open_store(
    name: str, path: Path, block_bytes: int, kv_format: str, config: EngineConfig, share: float
) -> DiskStore:
    """The file of a model's blocks, from an earlier start or new. `path`: of its checkpoint. `kv_format`: of the bytes
    of a block. `share`: the model's fraction of the bytes.

    Raises:
        DiskUnavailable: the file cannot be used, or the package for encryption is missing.
    """
    folder = config.kv_disk_folder
    assert folder is not None, "no folder is configured"
    if find_spec("cryptography") is None:
        raise DiskUnavailable("KV on disk needs the extra 'kvdisk': pip install 'turnpike[kvdisk]'")
    identity = {
        "checkpoint": checkpoint_version(path),
        "quantize": config.quantize,
        "format": kv_format,
        "block_tokens": BLOCK_TOKENS,
        "block_bytes": block_bytes,
    }
    digest = sha256(json.dumps(identity, sort_keys=True).encode()).digest()
    store = DiskStore(file_of(folder, name), digest, block_bytes, int(config.kv_disk_bytes * share))
    logger.info("%s: %d of %d KV blocks on disk are used", name, len(store.found), store.num_slots)
    return store


def make_tier(store: DiskStore, pool: BlockPool, config: EngineConfig, cost_model: StepCostModel) -> KVTier:
    """The scheduler's side of a store."""
    found = tuple((record.slot, record.block_hash, record.owner) for record in store.found)
    tier_config = TierConfig(
        num_slots=store.num_slots,
        block_bytes=store.block_bytes,
        owner_slots=max(1, int(config.scheduler.tenant_cache_fraction * store.num_slots)),
        idle_ns=int(1e9 * config.kv_disk_idle_seconds),
        found=found,
    )
    return KVTier(pool, tier_config, computing_time(cost_model))


__all__ = ["DiskUnavailable", "make_tier", "open_store", "reason_against", "remove_stale_files"]
