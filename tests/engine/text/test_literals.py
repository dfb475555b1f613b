import re
import timeit

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.literals import any_of


@settings(deadline=None)
@given(st.lists(st.text("ab[.|", min_size=1, max_size=4), max_size=6), st.text("ab[.|", max_size=20))
def test_matches_the_longest_at_the_first_place(texts: list[str], searched: str) -> None:
    longest_first = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)"
    assert re.findall(any_of(texts), searched) == re.findall(longest_first, searched)


def test_many_texts_cost_no_more_than_few() -> None:
    """Trying a thousand texts one by one would take some hundred times as long as ten."""
    searched = "[c" * 100_000

    def best_s(count: int) -> float:
        pattern = re.compile(any_of(f"[control_{index:04}]" for index in range(count)))
        return min(timeit.repeat(lambda: pattern.search(searched), number=1, repeat=5))

    assert best_s(1_000) < 10 * best_s(10)
