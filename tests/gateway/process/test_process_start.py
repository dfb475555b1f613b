"""`process_start`: what a gateway process does when its supervisor is gone."""

import os
import socket
import subprocess
import sys

import pytest

from gateway.process.process_start import HEARTBEAT

CHILD = """
import socket, sys, time
from gateway.process.process_start import SupervisorLink
connection = socket.socket(fileno=int(sys.argv[1]))
SupervisorLink(connection)
connection.sendall(sys.argv[2].encode())
print("sent", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("unread", ["", HEARTBEAT.decode()], ids=["all-read", "unread-heartbeat"])
def test_the_process_ends_with_its_supervisor(unread: str) -> None:
    """With a heartbeat that a killed supervisor had not read, the end of the connection is a reset."""
    here, there = socket.socketpair()
    with there:
        arguments = [sys.executable, "-c", CHILD, str(there.fileno()), unread]
        child = subprocess.Popen(arguments, pass_fds=[there.fileno()], stdout=subprocess.PIPE, env=os.environ)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"sent\n"
        here.close()
        try:
            assert child.wait(timeout=20) == 1
        finally:
            child.kill()
