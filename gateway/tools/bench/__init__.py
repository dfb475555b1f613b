"""Load on any server that speaks OpenAI's API, and what its users would have seen of it.

`load` sends at times that do not hang on answers; `client` does one request; `report` sums up. Nothing here knows the
gateway: the server is another process, and mostly another machine.
"""
