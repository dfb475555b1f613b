"""Streams that are open at once, as `benchmarks.open_streams` measures them, in a small number."""

from pathlib import Path

import pytest
import uvloop

from benchmarks.open_streams import ASKED_KIB, TOKENS, measure, serving

STREAMS = 200


@pytest.mark.usefixtures("smollm2_file")
def test_none_is_lost_and_each_takes_little_memory(tmp_path: Path) -> None:
    with serving(tmp_path) as (program, replica):
        outcome, grown_kib = uvloop.run(measure(program, replica, STREAMS, 60.0))
    assert outcome.failures == []
    assert outcome.tokens == [TOKENS] * STREAMS
    assert len(outcome.first_ms) == STREAMS
    assert grown_kib < ASKED_KIB
