"""Kernels for NVIDIA GPUs, in Triton. Imported only where they run: nothing else needs triton to be there."""
