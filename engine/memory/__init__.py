"""KV memory: block tables of 16-token blocks, and the prefix cache. No torch.

`BlockPool` owns the blocks and knows no requests. `KVCacheManager` applies it to requests. `hashing` computes the hash
of a block's content. Models with recurrent layers have state slots, too: `StatePool` owns them,
`SequenceStates` applies it to requests.
"""

from engine.memory.block_pool import BlockPool, CapacityError
from engine.memory.hashing import block_hash
from engine.memory.kv_cache import BlockCopy, KVCacheManager
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StatePool

__all__ = ["BlockCopy", "BlockPool", "CapacityError", "KVCacheManager", "SequenceStates", "StatePool", "block_hash"]
