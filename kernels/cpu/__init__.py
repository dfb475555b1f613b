"""The CPU backend: weights packed for oneDNN, KV read by block, thresholds without a full sort."""
