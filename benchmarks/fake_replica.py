"""A worker without an engine's work: `python -m benchmarks.fake_replica SOCKET CHECKPOINT`.

It speaks the workers' messages on a Unix socket. Each request gets its first token at once and then stays open. After
SIGUSR1 each gets the others, one in `TICK_S`, up to its `max_tokens`. So any number of streams can be open at once
through a gateway, and what is measured is the gateway.
"""

import asyncio
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import weightless
from engine.engine import Engine
from engine.request import FinishReason, TokenDelta, Usage
from engine.workers.frames import ConnectionEnded, LoopFrameWriter, received
from engine.workers.messages import Abort, Aborted, Accepted, Deltas, Submit, decode_to_worker, encode
from engine.workers.server import WorkerServer, ready_message
from engine.workers.unix_address import UnixAddress
from gateway.config.service_classes import DEFAULT_CLASSES
from gateway.config.settings import Settings
from gateway.generation.service_classes import engine_classes_of

TICK_S = 0.5


class _Open:
    """A request: tokens that it has and may have."""

    __slots__ = ("has", "most", "prompt_tokens")

    def __init__(self, prompt_tokens: int, most: int) -> None:
        self.prompt_tokens, self.most, self.has = prompt_tokens, most, 0


class FakeReplica:
    """Serves any number of clients."""

    def __init__(self, engine: Engine, token: int) -> None:
        self._engine = engine
        self._token = token
        self._released = asyncio.Event()

    def release(self) -> None:
        """Let all requests continue, those that come as well."""
        self._released.set()

    async def serve(self, stream: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One client, to its end."""
        writer, ended, requests = LoopFrameWriter(to_client), asyncio.Event(), dict[str, _Open]()
        writer.send(encode(ready_message(self._engine)))
        reports = asyncio.create_task(WorkerServer(self._engine.core, self._engine.models, writer).report(ended))
        ticks = asyncio.create_task(self._tick(requests, writer))
        try:
            async for payload in received(stream):
                match decode_to_worker(payload):
                    case Submit() as submit:
                        mine = {
                            each: _Open(call.prompt_tokens, call.params.max_tokens or 1)
                            for call in submit.submissions
                            for each in call.request_ids
                        }
                        requests |= mine
                        writer.send(encode(Accepted(submit.call)))
                        self._advance(requests, list(mine), writer)
                    case Abort() as abort:
                        gone = {each: requests.pop(each) for each in abort.request_ids if each in requests}
                        usages = {each: Usage(request.prompt_tokens, request.has) for each, request in gone.items()}
                        writer.send(encode(Aborted(abort.call, usages)))
        except ConnectionEnded:
            pass
        finally:
            ended.set()
            ticks.cancel()
            await reports
            writer.close()

    async def _tick(self, requests: dict[str, _Open], writer: LoopFrameWriter) -> None:
        await self._released.wait()
        while True:
            self._advance(requests, list(requests), writer)
            await asyncio.sleep(TICK_S)

    def _advance(self, requests: dict[str, _Open], ids: Iterable[str], writer: LoopFrameWriter) -> None:
        deltas = []
        for each in ids:
            request = requests[each]
            request.has += 1
            if request.has < request.most:
                deltas.append(TokenDelta(each, (self._token,)))
                continue
            del requests[each]
            usage = Usage(request.prompt_tokens, request.has)
            deltas.append(TokenDelta(each, (self._token,), finish_reason=FinishReason.LENGTH, usage=usage))
        if deltas:
            writer.send(encode(Deltas(deltas)))


async def main(socket: Path, checkpoint: Path) -> None:
    classes = engine_classes_of(Settings(service_classes=dict(DEFAULT_CLASSES)))
    with weightless.engine_of(Engine, checkpoint, classes) as engine:
        [served] = engine.models.values()
        replica = FakeReplica(engine, served.text.encode(" time", add_special_tokens=False)[0])
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, replica.release)
        server = await UnixAddress(socket).listen(replica.serve)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
