import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.literals import any_of


@settings(deadline=None)
@given(st.lists(st.text("ab[.|", min_size=1, max_size=4), max_size=6), st.text("ab[.|", max_size=20))
def test_matches_the_longest_at_the_first_place(texts: list[str], searched: str) -> None:
    longest_first = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"
    assert re.findall(any_of(texts), searched) == re.findall(longest_first, searched)


def test_many_texts_cost_no_more_than_few() -> None:
    pattern = re.compile(any_of(["[INST]", *(f"[control_{index}]" for index in range(1_000))]))
    start = time.process_time()
    assert pattern.search("[c" * 200_000) is None
    assert time.process_time() - start < 1.0
