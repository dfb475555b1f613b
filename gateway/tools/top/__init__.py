"""A running gateway as it is this second, on a terminal, from what `/metrics` says to everybody.

`sample` reads the metrics, `view` makes figures of two samples, `screen` makes lines of figures, and `watch` does all
that again and again.
"""
