"""Checkpoints: what a file format says, as a config, tensors and a vocabulary."""
