"""turnpike top"""

import asyncio
import sys
from typing import Annotated

import typer


def top(
    url: Annotated[str, typer.Option("--url", help="Address of the gateway.")] = "http://127.0.0.1:8080",
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between samples.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as plain text, and exit.")] = False,
) -> None:
    """Watch a running gateway: requests, tokens, queues, KV memory, drafts, latencies.

    \b
      turnpike top
      turnpike top --url http://10.0.0.7:8080 --interval 5
      turnpike top --once

    It reads /metrics, which needs no key. Keys: q quits, p pauses, 1 to 9 choose a model. If the gateway
    stops, the screen waits for it. Without a terminal on standard output, one frame is printed. TTFT is the time to the
    first token, TPOT the time per later token, gap99 the 99th percentile of the time between two tokens of a stream; in
    a bar, # is held, r reserved, c cached.
    """
    from gateway.tools.top.watch import live
    from gateway.tools.top.watch import once as one_frame

    if once or not sys.stdout.isatty():
        typer.echo(asyncio.run(one_frame(url, interval)))
    else:
        asyncio.run(live(url, interval))
