"""Clients that people use, each in an environment of its own, against the running program."""
