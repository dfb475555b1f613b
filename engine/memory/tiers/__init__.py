"""A second pool of KV blocks on local disk, under the hashes of the pool in memory. No torch.

`keys` derives a tenant's key, `store` keeps encrypted records in one file of slots, `index` owns the slots, `orders`
are the messages to and from the copier, `leases` holds blocks of the pool for it, `write_back` chooses what is written,
`fetching` what is read, `speed` measures both, `stats` are the metrics, and `tier` joins them for the scheduler. The
copier is a thread of its own: `engine.runtime.kv_copier`.

**States of a copy.** A hash is absent, being written, or stored. A record that is dropped while the copier writes or
reads it is doomed: it is not found any more, and its slot is free when the copier reports. A slot is reused in the
order of last use; a tenant beyond its share reuses its own slots first.

**Owners.** The engine thread owns the index and decides everything; the copier owns the file and the bytes between an
order and its report. It takes orders in turn, fetches first, and reports each exactly once, whatever fails.

**Leases.** The copier touches a block of the pool only while the pool counts a reference for it, so the block is
neither evicted nor overwritten. A block to be written is free when it is lent, is lent only while reserves and half of
the spare blocks stay free, and is back as soon as its bytes are in the copier's buffer, before the disk is touched: a
write is ordered only while the copier has nothing else to do, so no lease waits for a disk. A block to be filled is
allocated for the request's tenant and class; it is published when its record has been verified, and released like any
other. A fetch is handed out when the steps that were in flight at its allocation are complete, as one of them may still
write to its blocks.

**Written**, in this order: blocks of preempted requests; blocks that are about to be evicted; blocks idle for a time.
Each must take longer to compute than to read back. A block with a copy is the first to be evicted.

**Fetched.** A request at the head of its queue that could be admitted now, and whose next blocks are stored, waits
outside of the queues if fetching is predicted to be faster than computing; it delays no other request. It returns to
its place when the copier reports, or after `FETCH_WAIT_NS`, and is admitted by ordinary prefix hits. It waits again
only if the fetch has brought it further. A request that leaves in between (abort, pause, loss of an adapter) does not
end the fetch: its blocks become cached.

**Trust.** A record is sealed with AES-GCM under its tenant's key over the model's identity, the hash and the owner. A
torn, stale, foreign or corrupted record fails to open: it is dropped, and the request computes. So no order of writes
is needed and none is synced; the index is read from one table of headers at the start.

Not for models with recurrent states, KV in groups, a draft model, several ranks, or on a GPU: see
`engine.runtime.kv_tier_loading`.
"""

from engine.memory.tiers.stats import TierStats
from engine.memory.tiers.store import DiskStore, DiskUnavailable
from engine.memory.tiers.tier import KVTier, TierConfig

__all__ = ["DiskStore", "DiskUnavailable", "KVTier", "TierConfig", "TierStats"]
