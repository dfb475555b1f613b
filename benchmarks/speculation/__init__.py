"""The speed-up of drafts: `python -m benchmarks.speculation`.

__main__  the figures, and their plot
modes     one engine, with drafts switched off, always on, or as the controller decides
pair      half a billion random parameters, and a small model that agrees with it as often as is asked for
copying   texts to copy from: for a real model, and for half a billion parameters that were made to copy
"""
