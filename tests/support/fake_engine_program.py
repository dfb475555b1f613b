"""The `turnpike` command with a fake engine in place of the real one: everything else is as it is."""

from collections.abc import Mapping
from typing import Any

import gateway.process.serve
from engine.scheduling.stats import SchedulerStats
from gateway.management.cli import main
from tests.support.fake_engine import FakeEngine


class PacedEngine(FakeEngine):
    """Slow enough that a test can interrupt it: 20 tokens, 50 ms each."""

    def __init__(self) -> None:
        super().__init__()
        self.reply = "Paris is the capital"
        self.pace_s = 0.05

    def stats(self) -> Mapping[str, SchedulerStats]:
        return {}


def load_engine(*_: Any) -> PacedEngine:
    return PacedEngine()


if __name__ == "__main__":
    gateway.process.serve.load_engine = load_engine  # type: ignore[assignment]
    main()
