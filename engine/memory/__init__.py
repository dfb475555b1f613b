"""KV memory: which block of 16 tokens holds what, who holds it, and what may be found again. No torch.

`BlockPool` owns the blocks and knows no requests; `KVCacheManager` applies it to requests; `hashing` names the
content of a block.
"""

from engine.memory.block_pool import BlockPool, CapacityError
from engine.memory.hashing import block_hash
from engine.memory.kv_cache import BlockCopy, KVCacheManager

__all__ = ["BlockCopy", "BlockPool", "CapacityError", "KVCacheManager", "block_hash"]
