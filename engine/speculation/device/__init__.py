"""A draft model on a GPU. Imports torch."""
