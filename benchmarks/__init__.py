"""Benchmarks, and how to repeat them. Every figure comes with a peer's or a limit's of the same run."""
