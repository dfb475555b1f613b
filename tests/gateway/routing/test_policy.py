"""Valid and invalid routing policies."""

import pytest

from gateway.tenancy.policies import MAX_ALIASES, InvalidPolicy, RoutingPolicy


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("cascade_percent", 0),
        ("cascade_percent", 100),
        ("aliases", {"": "m"}),
        ("aliases", {"a b": "m"}),
        ("aliases", {"a": "-m"}),
        ("aliases", {"a": "m" * 129}),
        ("aliases", {"a\n": "m"}),
        ("aliases", {f"a{i}": "m" for i in range(MAX_ALIASES + 1)}),
    ],
)
def test_the_field_at_fault_is_named(param: str, value: object) -> None:
    with pytest.raises(InvalidPolicy, match=r".") as refused:
        RoutingPolicy(**{param: value})
    assert refused.value.param == param


def test_the_bounds_themselves_are_allowed() -> None:
    RoutingPolicy(cascade_percent=1)
    RoutingPolicy(cascade_percent=99, aliases={f"a{i}": "org/m:1" for i in range(MAX_ALIASES)})
