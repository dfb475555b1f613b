"""Running a step: the slots that hold each running request's state, the model, the sampler.

Arrays are numpy's: on a CPU the engine sees a `HostModel` and its `HostOps`, and imports no torch where the native
library computes. `engine.execution.device` is the executor of a GPU. A step's rows are an argument; there is no global
context."""
