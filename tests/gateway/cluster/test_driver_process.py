"""The driver's process: what it reports, and that another one follows where it ends or is silent."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cluster.driver_process import DriverProcess
from gateway.cluster.orders import Orders, Reports, WorkerOrder

ECHO = """
import json, sys
for line in sys.stdin:
    ids = [each["id"] for each in json.loads(line)["workers"]]
    reports = [{"id": each, "attempt": 1, "phase": "starting"} for each in ids]
    print(json.dumps({"workers": reports}), flush=True)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverProcess]:
    driver = DriverProcess([sys.executable, "-c", ECHO], tmp_path / "driver.log", silence_seconds=2.0)
    yield driver
    driver.close()


def order(number: int) -> Orders:
    return Orders([WorkerOrder(f"m-{number}", 1, [], {}, 1.0, 0.0, "/w")])


def reported(driver: DriverProcess, orders: Orders) -> Reports:
    deadline = time.monotonic() + 30
    while True:
        if reports := driver.exchange(orders):
            return reports
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_orders_are_sent_when_they_change(driver: DriverProcess) -> None:
    assert [each.id for each in reported(driver, order(1)).workers] == ["m-1"]
    assert driver.exchange(order(1)) is None
    assert [each.id for each in reported(driver, order(2)).workers] == ["m-2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_another_one_follows_and_has_the_orders(driver: DriverProcess, number: signal.Signals) -> None:
    reported(driver, order(1))
    former = driver.pid
    assert former is not None
    os.kill(former, number)
    assert [each.id for each in reported(driver, order(1)).workers] == ["m-1"]
    assert driver.pid != former
    assert driver.starts_total == 2


def test_one_that_does_not_start_is_tried_again_with_delays(tmp_path: Path) -> None:
    clock = [0.0]
    program = "import sys; sys.exit('no head here')"
    driver = DriverProcess([sys.executable, "-c", program], tmp_path / "driver.log", lambda: clock[0])
    for _ in range(40):
        assert driver.exchange(order(1)) is None
        if driver._process is not None:
            driver._process.wait()
        clock[0] += 0.5
    assert 3 <= driver.starts_total <= 7, "in 20 s"
    assert "no head here" in driver.last_words()
    driver.close()
