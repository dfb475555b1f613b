"""Refusals: requests that were answered with an error and have no usage record. They are counted, and never billed.

refusal      one refused request
counts       refusals of equal kind added up by minute, in bounded memory
refusal_log  records refusals, and writes the counts to the analytics store
metrics      Prometheus metrics of refusals

`ErrorMiddleware` records them, in one place. Recording writes nothing to disk, so a flood of refused requests costs a
dictionary entry each. `gateway/analytics/refusals.py` has the queries.
"""
