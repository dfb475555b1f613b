"""Offline fit of the complexity score to a pair of models."""
