from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.support.batch_app import BatchGateway
from tests.support.gateway import KEY, Server
from tests.support.gateway_fixtures import no_place_is_kept, silent_log

__all__ = ["no_place_is_kept", "silent_log"]


@pytest.fixture
def gateway(tmp_path: Path) -> BatchGateway:
    return BatchGateway(tmp_path)


@pytest.fixture
def server(gateway: BatchGateway) -> Iterator[Server]:
    with gateway.serving() as server:
        yield server


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client, with the standard tenant's key."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk
