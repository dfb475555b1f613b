"""A model on several ranks, each of which has a part of it: tensor parallel and pipeline parallel, on CPUs.

- `shards`: how a model is cut; `sources`, `adapters`: the parts of checkpoints and adapters
- `rank_model`: the part of one rank; `collectives`: what ranks do together, over `torch.distributed`
- `parallel_model`: all ranks as one `HostModel`, in rank 0, which is the engine's process
- `pipelined_runner`: the executor of a model in stages, with as many steps in flight
- `rank_processes`: the processes of the other ranks; `rank`: such a process
- `channel`: calls from rank 0 to the others; `step_words`, `adapter_words`: their arguments
- `loading`: a model of an engine onto its ranks; `sizing`: how many ranks a model needs

The ranks are processes of one machine. All have the same block ids, slots and steps: scheduling and sampling stay in
rank 0. `collectives`, `rank_model`, `parallel_model`, `pipelined_runner`, `rank_processes` and `rank` import torch.
"""
