"""Telemetry for operators: `logs` (JSON lines on standard error) and `metrics` (Prometheus).

Neither contains a key, a secret, or the text of a tenant's request or answer.
"""
