"""The pepper under which tests make keys and sign events."""

PEPPER = b"a pepper for tests, of 32 bytes."
