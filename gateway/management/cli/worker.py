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
    grpc: Annotated[
        str | None,
        typer.Option("--grpc", metavar="HOST:PORT", help="Speak vLLM's gRPC protocol (VllmEngine), too."),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease", min=1, metavar="SECONDS", help="End after this time without any client. [default: never]"
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compute models for gateways, here or on other machines, until SIGTERM or Ctrl-C.

    \b
      turnpike worker --listen 127.0.0.1:9010 --model chat=/models/qwen3
    """
    from engine.workers.remote_link import parse_address
    from gateway.config.listen_address import ListenAddress
    from gateway.errors import OperatorError
    from gateway.process.termination import Termination

    settings = settings_from(
        data_dir=data_dir, models={name: Path(each) for name, each in parse_models(model or []).items()} or None
    )
    try:
        address = parse_address(listen if listen.startswith("unix:") else f"tcp://{listen}")
    except ValueError as error:
        raise OperatorError(f"--listen: {error}") from error
    try:
        grpc_address = None if grpc is None else ListenAddress.parse(grpc)
    except ValueError as error:
        raise OperatorError(f"--grpc: {error}") from error
    with Termination() as termination:
        from gateway.process.worker import run_worker

        run_worker(settings, address, termination, grpc_address, lease)
