"""A signal at any moment since the address accepts connections starts a drain."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SIGNALLED_WHILE_THE_SECOND_SOCKET_OPENS = """
import os, signal
import gateway.process.serve as serve
from gateway.config.settings import load_settings
from gateway.process.admin_socket import AdminSocket
from gateway.process.listener import bind
from gateway.process.termination import Termination
from tests.e2e.kill.zygote import PacedEngine

opened = AdminSocket.serve

async def signalled(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    return await opened(*arguments)

AdminSocket.serve = signalled
serve.load_engine = lambda *_: PacedEngine()
with Termination() as termination:
    serve.run(load_settings(), bind("127.0.0.1", 0), termination)
"""


@pytest.mark.usefixtures("no_settings")
def test_a_signal_while_the_start_ends_drains(tmp_path: Path) -> None:
    stated = {"DATA_DIR": str(tmp_path), "PRICES": '{"tiny": [1, 1]}', "LOG_FORMAT": "json"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIGNALLED_WHILE_THE_SECOND_SOCKET_OPENS],
        env={**os.environ, **{f"TURNPIKE_{name}": value for name, value in stated.items()}},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert '"stopped"' in ended.stdout + ended.stderr
