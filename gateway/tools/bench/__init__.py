"""Load test of any server with OpenAI's API, measured from its clients' side.

`load` schedules requests independently of responses, `client` sends one request, and `report` aggregates. The package
does not depend on the gateway: the server is another process, usually on another machine.
"""
