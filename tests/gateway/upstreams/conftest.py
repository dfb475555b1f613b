"""The application with a local fake engine (`tiny`) and a model that a scripted server runs (`big`, there `there`)."""

from collections.abc import Iterator

import pytest

from tests.support.fake_upstream import FakeUpstream
from tests.support.gateway_fixtures import *  # noqa: F403
from tests.support.upstream_app import UpstreamApp


@pytest.fixture
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream().serving() as served:
        yield served


@pytest.fixture
def big(upstream, engine, authenticator, limiter, journal, sessions, tmp_path) -> UpstreamApp:
    given = {"limiter": limiter, "journal": journal, "sessions": sessions}
    return UpstreamApp(tmp_path, upstream, engine, authenticator, given)


@pytest.fixture
def app(big):
    return big.build()
