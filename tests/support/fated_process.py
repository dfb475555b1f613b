"""In the place of a gateway process: ends as the variable FATE says."""

import asyncio
import os
import signal
import socket
import sys
import time

from gateway.process.process_start import ProcessStart, SupervisorLink, receive_start


def main() -> None:
    connection, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:3])
    start = receive_start(connection)
    link = SupervisorLink(connection)
    match os.environ["FATE"]:
        case "failed":
            link.failed("the price is missing")
            raise SystemExit(1)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "serves once":
            listener.listen()
            link.ready()
            client, _ = listener.accept()
            with client:
                client.sendall(f"{start.index} {start.starts_total}".encode())
        case "hangs":
            asyncio.run(_serve_until_asked(start, listener, link))


async def _serve_until_asked(start: ProcessStart, listener: socket.socket, link: SupervisorLink) -> None:
    """Answers `index pid starts`, and then to the line `hang` with a loop that stands still while its threads run."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{start.index} {os.getpid()} {start.starts_total}\n".encode())
        await writer.drain()
        if await reader.readline() == b"hang\n":
            while True:
                time.sleep(1)  # noqa: ASYNC251 the loop stands still
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    link.ready()
    link.send_heartbeats()
    await server.serve_forever()


if __name__ == "__main__":
    main()
