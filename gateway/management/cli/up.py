"""turnpike up"""

from pathlib import Path
from typing import Annotated

import typer


def up(
    file: Annotated[Path, typer.Argument(metavar="CLUSTER.TOML", help="Models, groups of workers, and their scaling.")],
) -> None:
    """Keep the workers of a cluster running by Ray until SIGTERM or Ctrl-C, which drains and ends them.

    \b
      turnpike up cluster.toml
    """
    from gateway.cluster.cluster_file import load_cluster_file
    from gateway.extras import require
    from gateway.process.termination import Termination

    with Termination() as termination:
        require("ray", "turnpike up")
        cluster = load_cluster_file(file)
        from gateway.cluster.up import run_up

        run_up(cluster, termination)
