"""turnpike worker"""

from pathlib import Path
from typing import Annotated

import typer

from gateway.management.cli.options import DataDir, parse_models, settings_from


def worker(
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Address for gateways, or unix:PATH; port 0 selects a free one."
        ),
    ] = "127.0.0.1:9010",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="[NAME=]PATH", help="A Hugging Face folder or a GGUF file. Repeatable."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compute models for gateways, here or on other machines, until SIGTERM or Ctrl-C.

    \b
      turnpike worker --listen 127.0.0.1:9010 --model chat=/models/qwen3
    """
    from engine.workers.remote_link import parse_address
    from gateway.errors import OperatorError
    from gateway.process.termination import Termination

    settings = settings_from(
        data_dir=data_dir, models={name: Path(each) for name, each in parse_models(model or []).items()} or None
    )
    try:
        address = parse_address(listen if listen.startswith("unix:") else f"tcp://{listen}")
    except ValueError as error:
        raise OperatorError(f"--listen: {error}") from error
    with Termination() as termination:
        from gateway.process.worker import run_worker

        run_worker(settings, address, termination)
