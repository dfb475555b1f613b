"""turnpike serve"""

from typing import Annotated

import typer

from gateway.management.cli.options import DataDir, parse_models, settings_from


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option("--port", help="[default: 8080]; 0 takes any free one.")] = None,
    data_dir: DataDir = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="NAME=PATH",
            help="A Hugging Face folder or a GGUF file, and the name to serve it under. Repeatable. "
            "[default: smollm2 and smollm2-small, fetched when they are missing]",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda. [default: auto]")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="auto, bfloat16 or float32. [default: auto]")] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", help="auto, fp8 on a GPU, int8 on a CPU. [default: auto]")
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option("--quantize", help="Keep weights as none, int8 or int4 says, on a CPU. [default: none]"),
    ] = None,
    kv_cache_bytes: Annotated[
        str | None, typer.Option("--kv-cache-bytes", help="KV memory of each model, as in 4GiB.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Bound on prompt and answer together, in tokens.")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", help="Sequences that run at a time. [default: 64]")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Threads that compute.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Make a tenant and a key, and print a request to paste into a shell.")
    ] = False,
) -> None:
    """Serve models over the OpenAI API until SIGTERM or Ctrl-C."""
    settings = settings_from(
        host=host,
        port=port,
        data_dir=data_dir,
        models=parse_models(model or []),
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        quantize=quantize,
        kv_cache_bytes=kv_cache_bytes,
        max_model_len=max_model_len,
        max_running=max_running,
        threads=threads,
    )

    # The port comes first: better refused now than after loading a model.
    from gateway.process.listener import bind
    from gateway.process.memory_trim import collecting_nothing
    from gateway.process.termination import Termination

    with Termination() as termination, bind(settings.host, settings.port) as listener, collecting_nothing():
        from gateway.process.serve import run

        run(settings, listener, termination, demo=demo)
