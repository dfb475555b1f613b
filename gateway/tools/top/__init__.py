"""A live terminal monitor of a gateway, from its public `/metrics`.

`sample` reads the metrics, `view` computes figures from two samples, `screen` renders them, and `watch` repeats this.
"""
