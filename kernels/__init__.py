"""The arithmetic of the engine. Each op is defined once, in plain torch, in `kernels.reference`.

`kernels.dispatch.select_ops` returns the op table of a device; callers name the op, never the backend. `kernels.layout`
and `kernels.noise` import no torch.
"""
