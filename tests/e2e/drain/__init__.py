"""SIGTERM to the gateway at random moments under load; afterwards what clients saw is compared with the books.

The program is the real one, with a tiny model, Redis for limits and sessions, and ClickHouse. Each cycle starts it,
loads it with streams and whole answers of three dialects from two tenants with limits, some of them turns of sessions,
ends it by one SIGTERM, and looks at what is left. A few cycles run in the tests;
`python -m tests.e2e.drain --cycles 100` runs more of them.
"""
