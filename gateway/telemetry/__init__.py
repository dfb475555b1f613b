"""What an operator sees of a running gateway: `logs` (JSON lines on standard error) and `metrics` (Prometheus).

Neither ever holds a key, a secret, or a word of what tenants ask and get.
"""
