"""Who is done."""

import pytest

from engine.request import FinishReason, SamplingParams
from engine.scheduling.stopping import Stop, stop_after_token
from engine.simulation import make_request

EOS, OTHER_EOS, STOP, TEXT = 0, 1, 2, 9
WINDOW = 100


def stop_of(answer: list[int], params: SamplingParams, window: int = WINDOW) -> Stop | None:
    request = make_request("r", [5, 5, 5], params=params, eos_token_ids=(EOS, OTHER_EOS))
    request.tokens += answer
    return stop_after_token(request, window)


def test_text_goes_on() -> None:
    assert stop_of([TEXT], SamplingParams(max_tokens=9)) is None


@pytest.mark.parametrize("token", [EOS, OTHER_EOS, STOP])
def test_an_end_token_ends_it(token: int) -> None:
    assert stop_of([TEXT, token], SamplingParams(max_tokens=9, stop_token_ids=(STOP,))) == (FinishReason.STOP, token)


def test_ignore_eos_leaves_stop_tokens_in_force() -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(STOP,))
    assert stop_of([EOS], params) is None
    assert stop_of([STOP], params) == (FinishReason.STOP, STOP)


def test_ignore_eos_does_not_save_an_end_token_that_is_also_a_stop_token() -> None:
    assert stop_of([EOS], SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(EOS,))) is not None


@pytest.mark.parametrize("end", [EOS, STOP])
@pytest.mark.parametrize(("answer_tokens", "ends"), [(1, False), (2, False), (3, True)])
def test_an_end_token_counts_beyond_min_tokens(end: int, answer_tokens: int, ends: bool) -> None:
    params = SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=(STOP,))
    stop = stop_of([TEXT] * (answer_tokens - 1) + [end], params)
    assert (stop is not None) is ends


@pytest.mark.parametrize(("answer_tokens", "ends"), [(2, False), (3, True)])
def test_max_tokens(answer_tokens: int, ends: bool) -> None:
    stop = stop_of([TEXT] * answer_tokens, SamplingParams(max_tokens=3))
    assert stop == ((FinishReason.LENGTH, None) if ends else None)


@pytest.mark.parametrize(("window", "ends"), [(6, False), (5, True), (4, True)])
def test_the_window_covers_prompt_and_answer(window: int, ends: bool) -> None:
    stop = stop_of([TEXT, TEXT], SamplingParams(max_tokens=50), window)
    assert stop == ((FinishReason.LENGTH, None) if ends else None)


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    assert stop_of([TEXT, EOS], SamplingParams(max_tokens=2)) == (FinishReason.STOP, EOS)


def test_an_end_token_of_the_prompt_does_not_count() -> None:
    request = make_request("r", [EOS], params=SamplingParams(max_tokens=9), eos_token_ids=(EOS,))
    request.tokens.append(TEXT)
    assert stop_after_token(request, WINDOW) is None
