"""turnpike serve"""

from pathlib import Path
from typing import Annotated

import typer

from gateway.management.cli.options import DataDir, parse_models, settings_from


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port to listen on; 0 selects a free one. [default: 8080]")
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[NAME=]MODEL",
            help="A Hugging Face folder, a GGUF file, or OWNER/NAME[:FILE.gguf] of the Hugging Face Hub, which is "
            "downloaded if missing; and the name that it is served under, by default its own. Repeatable. "
            "[default: smollm2 and smollm2-small, downloaded if missing]",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device: auto, cpu or cuda. [default: auto]")] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Compute dtype: auto, bfloat16 or float32. [default: auto]")
    ] = None,
    kv_dtype: Annotated[
        str | None, typer.Option("--kv-dtype", help="KV cache dtype: auto, int8 or fp8 (GPU). [default: auto]")
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option("--quantize", help="Weight quantization: none, int8, int4, fp8 (GPU). [default: none]"),
    ] = None,
    kv_cache_bytes: Annotated[
        str | None, typer.Option("--kv-cache-bytes", help="KV memory of each model, as in 4GiB.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", help="Maximum tokens of prompt and answer together.")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", help="Maximum number of running sequences. [default: 64 on a CPU]")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Number of compute threads.")] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Models without a price cost nothing, for those who do not bill.")
    ] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Create a tenant and a key, and print a first request.")] = False,
) -> None:
    """Serve models over the OpenAI API until SIGTERM or Ctrl-C.

    \b
      turnpike serve --demo
      turnpike serve --free --model Qwen/Qwen3-0.6B
      turnpike serve --model chat=/models/qwen3 --model small=OWNER/NAME:small.Q4_K_M.gguf
    """
    stated = parse_models(model or [])
    settings = settings_from(
        host=host,
        port=port,
        data_dir=data_dir,
        models={name: Path(each) for name, each in stated.items()} or None,
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
    from gateway.process.memory_trim import TRACEBACK_FRAMES, collecting_nothing, without_imports
    from gateway.process.termination import Termination

    with Termination() as termination, bind(settings.host, settings.port) as listener, collecting_nothing():
        with without_imports(TRACEBACK_FRAMES):
            import structlog  # noqa: F401

        from gateway.process.serve import run

        run(settings, listener, termination, demo=demo, free=free, stated=stated)
