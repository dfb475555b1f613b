"""The journal: usage made durable on this machine's disk before the last byte of an answer."""
