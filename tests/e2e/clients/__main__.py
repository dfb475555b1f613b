"""Make the environments of the clients that are not there yet, and that of the newest uvicorn each time."""

from tests.e2e.clients.environments import ENVIRONMENTS, NEWEST_UVICORN

for environment in (*ENVIRONMENTS, NEWEST_UVICORN):
    if environment is NEWEST_UVICORN or not environment.is_made:
        print(f"{environment.folder}: {' '.join(environment.requirements)}", flush=True)
        environment.make()
