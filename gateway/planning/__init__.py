"""The inputs and the report of `turnpike plan`; `engine.planning` computes it.

description   traffic, targets and prices from a TOML file
trace_file    recorded requests from CSV or JSON lines
logged_usage  traffic from the usage in ClickHouse
devices       a device by name, or with numbers of its own
model_config  a model's config by folder, file or name
what_if       changes to a plan's question
questions     from all inputs to a question
measuring     records steps of a real run on this machine, and fits them
report        a plan as text; report_json as JSON
"""
