"""Triton kernels for NVIDIA GPUs. Imported only where they run; triton is optional otherwise."""
