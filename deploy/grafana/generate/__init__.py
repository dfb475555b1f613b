"""The dashboards, and how they become the JSON that Grafana reads: `python -m deploy.grafana.generate` writes it.

A dashboard is a module that says which panels there are, in the words of `panels`; `promql` and `usage_sql` are how
they ask, `grafana_json` knows Grafana's format, and it alone does. The JSON is committed: to deploy it needs no
Python.
"""
