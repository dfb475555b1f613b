"""The arithmetic of the engine. Each op is defined once, in plain torch, in `kernels.reference`.

`kernels.dispatch.select_ops` returns the op table of a device; callers name the op, never the backend. `kernels.host`
is the interface of CPU backends, on numpy arrays (bfloat16 by `ml_dtypes`): the native library or torch, which takes
130 MiB and a second of every start and is imported only where it computes. `kernels.ops` is the interface on torch's
tensors, of a GPU and below `TorchHost`. `kernels.layout` and `kernels.noise` import no torch.
"""
