"""turnpike top"""

import asyncio
import sys
from typing import Annotated

import typer


def top(
    url: Annotated[str, typer.Option("--url", help="Where the gateway is.")] = "http://127.0.0.1:8080",
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds from one look to the next.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame as plain text, and end.")] = False,
) -> None:
    """Watch a running gateway: requests, tokens, queues, KV memory, drafts, latencies.

    \b
      turnpike top
      turnpike top --url http://10.0.0.7:8080 --interval 5
      turnpike top --once

    It reads /metrics, which needs no key. Keys: q quits, p pauses, 1 to 9 choose a model. A gateway that goes away is
    waited for. Where standard output is no terminal, one frame is printed. TTFT is the time to the first token, TPOT
    that of each later one, gap99 the 99th percentile of those between two of a stream; in a bar, # is held, r reserved,
    c cached.
    """
    from gateway.tools.top.watch import live
    from gateway.tools.top.watch import once as one_frame

    if once or not sys.stdout.isatty():
        typer.echo(asyncio.run(one_frame(url, interval)))
    else:
        asyncio.run(live(url, interval))
