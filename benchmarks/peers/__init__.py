"""Turnpike compared with vLLM (its CPU build) and llama.cpp's server, in one run: `python -m benchmarks.peers`.

Servers in processes of their own answer the same requests over HTTP, streamed; while one is measured the others are
stopped (SIGSTOP) and take no processor. Random weights measure speed and never quality.
"""
