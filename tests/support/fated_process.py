"""In the place of a gateway process: ends as the variable FATE says."""

import os
import signal
import socket
import sys

from gateway.process.process_start import SupervisorLink, receive_start


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


if __name__ == "__main__":
    main()
