from dataclasses import replace
from importlib.metadata import version

import pytest

from gateway.tools.top.screen import SMALLEST, Frame, lines
from tests.gateway.top.served import busy

FRAME = Frame("http://127.0.0.1:8080", 1.0, busy())


def text(frame: Frame, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in lines(frame, width, height))


@pytest.mark.parametrize("size", [SMALLEST, (40, 10), (200, 60), (80, 3), (1, 2)])
@pytest.mark.parametrize("view", [FRAME.view, None])
def test_it_fits(size: tuple[int, int], view: object) -> None:
    width, height = size
    made = lines(replace(FRAME, view=view), width, height)  # type: ignore[arg-type]
    assert len(made) <= height
    assert max(line.cell_len for line in made) <= width


def test_the_smallest_terminal_shows_all_of_two_classes() -> None:
    shown = text(FRAME).splitlines()
    assert not any(line.endswith("…") for line in shown)
    assert shown[0].startswith(f"turnpike {version('turnpike')}  http://127.0.0.1:8080  ready")
    assert shown[-1].startswith("q quit")
    assert "large (1 of 2)  running 3  waiting 2  paused 1  steps/s 25  preempted/s 1" in shown
    assert "tokens/s     40 in  20 out  25% of tokens found in the prefix cache" in shown
    assert "drafts       ngram 2.5 deep, 65% right" in shown
    premium, held, *_ = (line.split() for line in shown if line.startswith("premium"))
    assert (premium[:7], premium[-1]) == (["premium", "2", "40", "20", "3", "2", "1.5s"], "4")
    assert held == ["premium", "[#######rrc.............]", "30%", "10%", "5%", "1", "3"]
    assert "KV, 30 of 100 blocks held" in text(FRAME)


def test_another_model_and_one_that_went_away() -> None:
    assert "small (2 of 2)" in text(replace(FRAME, chosen=1))
    assert "small (2 of 2)" in text(replace(FRAME, chosen=8))


def test_more_classes_than_there_is_room_for() -> None:
    model = FRAME.view.models[0]
    many = replace(model, classes=tuple(replace(model.classes[0], name=f"c{n}") for n in range(9)))
    frame = replace(FRAME, view=replace(FRAME.view, models=(many,)))
    assert "and 5 classes more" in text(frame)
    assert "c8" in text(frame, height=40)
    assert text(frame).splitlines()[-1].startswith("q quit")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ready": 0}, "NOT READY"),
        ({"healthy": 0}, "ENGINE UNHEALTHY"),
        ({"journal_trouble": 1}, "JOURNAL IN TROUBLE"),
        ({"breaker_open": 1}, "REDIS AWAY"),
        ({"backlog": 120_000, "backlog_age_s": 7200}, "120k events behind (2h)"),
    ],
)
def test_trouble_is_said_in_words_too(changes: dict[str, float], words: str) -> None:
    assert FRAME.view is not None
    assert words not in text(FRAME)
    assert words in text(replace(FRAME, view=replace(FRAME.view, **changes)))  # type: ignore[arg-type]


def test_a_server_that_is_away_leaves_what_was_last_seen() -> None:
    shown = text(replace(FRAME, trouble="cannot connect", trouble_s=12.3, paused=True))
    assert "PAUSED  NOT ANSWERING for 12 s: cannot c" in shown
    assert "large (1 of 2)" in shown
