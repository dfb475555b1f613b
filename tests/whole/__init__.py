"""The whole program under simulation: the real gateway from the ASGI call down, in virtual time, from one seed.

Real are the application and its middleware, routing, sessions, admission, metering and billing, `Engine` and its core,
the scheduler and KV memory, SQLite, and the Lua scripts of Redis. Simulated are the clock, threads (as greenlets on the
event loop), the executor (which checks every KV read), Redis' server, the topic, ClickHouse, the disk and clients. In a
third of the seeds engines are in processes of their own, simulated down to their sockets.
`python -m tests.whole --help` says how to run it, `tests/whole/README.md` how to read it.
"""
