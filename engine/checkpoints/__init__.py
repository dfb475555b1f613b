"""Checkpoint formats, read into a config, tensors and a vocabulary."""
