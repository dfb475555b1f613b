"""The server that other tests scrape with is Prometheus, follows its configuration, and is gone afterwards."""

import json
import urllib.error
import urllib.request

import pytest

from tests.deploy.prometheus_server import running_prometheus
from tests.support.servers import ServerMissing


def test_it_answers_while_it_is_wanted() -> None:
    try:
        with running_prometheus("global: {scrape_interval: 7s}\n") as server:
            config = json.loads(urllib.request.urlopen(f"{server.url}/api/v1/status/config", timeout=30).read())
            assert "scrape_interval: 7s" in config["data"]["yaml"]
    except ServerMissing as error:
        pytest.skip(str(error))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{server.url}/-/ready", timeout=1)


def test_what_it_does_not_understand_is_said() -> None:
    try:
        with pytest.raises(AssertionError, match="yaml"), running_prometheus("nonsense: [1"):
            pass
    except ServerMissing as error:
        pytest.skip(str(error))
