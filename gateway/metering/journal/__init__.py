"""The journal: makes usage durable on this machine's disk before the last byte of an answer."""
