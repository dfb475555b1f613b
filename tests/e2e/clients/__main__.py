"""Make the environments of the clients that are not there yet."""

from tests.e2e.clients.environments import ENVIRONMENTS

for environment in ENVIRONMENTS:
    if not environment.is_made:
        print(f"{environment.folder}: {' '.join(environment.requirements)}", flush=True)
        environment.make()
