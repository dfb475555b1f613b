"""Services around a fake engine, for a gateway that a test starts in its own event loop."""

from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.generation.services import Services
from tests.support.gateway import MAX_BODY_BYTES
from tests.support.gateway_fixtures import *  # noqa: F403
from tests.support.services import services_with


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, max_body_bytes=MAX_BODY_BYTES)


@pytest.fixture
def services(tmp_path, engine, authenticator, metrics, limiter, journal, sessions, refusals) -> Services:
    given = {"metrics": metrics, "limiter": limiter, "journal": journal, "sessions": sessions, "refusals": refusals}
    return services_with(tmp_path, engine, authenticator, **given)
