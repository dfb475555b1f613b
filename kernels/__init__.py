"""The arithmetic. Each op is defined once, in plain torch, in `kernels.reference`; that is its meaning.

`kernels.dispatch.select_ops` hands out the op table of a device; callers name the op, never the backend.
`kernels.layout` and `kernels.noise` import no torch.
"""
