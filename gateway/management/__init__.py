"""Management: tenants, keys, limits, prices, invoices and credit, and the three interfaces to them.

`operations` declares and does what can be done; `http`, `console` and `cli` call it.
"""
