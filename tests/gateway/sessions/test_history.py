"""A session's history: its content, its form in a template, and its storage."""

import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import History, UnreadableHistory
from gateway.sessions.history import MAX_VALUE_BYTES, pack, unpack


def message(role: str, content="x", **fields) -> dict:
    return {"role": role, "content": content, **fields}


def talk(*roles: str) -> History:
    return History(messages=tuple(message(role, f"{n}") for n, role in enumerate(roles)))


def roles(history: History) -> list[list[str]]:
    return [[each["role"] for each in turn] for turn in history.turns]


def test_a_system_prompt_in_front_is_kept_and_a_new_one_takes_its_place():
    asked = History().with_messages([message("system", "be brief"), message("user", "hi")])
    first = asked.with_answer(message("assistant", "Hello"))
    assert first.system == (message("system", "be brief"),)
    assert [each["content"] for each in first.with_messages([message("user", "and?")]).prompt] == [
        *("be brief", "hi", "Hello", "and?")
    ]
    replaced = first.with_messages(
        [message("developer", "be long"), message("system", "and kind"), message("user", "and?")]
    )
    assert [each["content"] for each in replaced.prompt] == ["be long", "and kind", "hi", "Hello", "and?"]


def test_a_system_message_further_on_stays_where_it_is():
    history = History(system=(message("system", "s"),)).with_messages([message("user", "a"), message("system", "note")])
    assert [each["content"] for each in history.prompt] == ["s", "a", "note"]


@pytest.mark.parametrize(("given", "turns"), [
    ((), []),
    (("user", "assistant", "user", "assistant"), [["user", "assistant"]] * 2),
    (("assistant", "user", "assistant"), [["assistant", "user", "assistant"]]),
    (("user", "user", "assistant", "user"), [["user", "user", "assistant"], ["user"]]),
    (("user", "assistant", "tool", "assistant", "user"), [["user", "assistant", "tool", "assistant"], ["user"]]),
])  # fmt: skip
def test_a_turn_begins_with_a_message_of_the_user(given, turns):
    """So a tool's result never stands without the call that it answers."""
    assert roles(talk(*given)) == turns


def test_dropped_turns_go_whole_and_are_counted():
    history = talk("user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant")
    once = history.without(1)
    assert [each["content"] for each in once.messages] == ["4", "5", "6", "7"]
    twice = once.without(1)
    assert ([each["content"] for each in twice.messages], twice.dropped_turns) == (["6", "7"], 2)


@pytest.mark.parametrize(("system", "content"), [
    ((), "Summary of the earlier conversation, which is not shown any more:\nthey met"),
    ((message("system", "be brief"),), "be brief\n\nSummary of the earlier conversation, which is not shown any "
     "more:\nthey met"),
])  # fmt: skip
def test_a_summary_is_part_of_the_system_prompt_as_it_is_shown(system, content):
    history = History(system=system, messages=talk("user", "assistant", "user").messages).without(1, "they met")
    [shown, *rest] = history.prompt
    assert (shown["role"], shown["content"]) == ("system", content)
    assert [each["role"] for each in rest] == ["user"]
    assert history.system == system


def test_a_summary_joins_a_system_prompt_in_parts():
    parts = [{"type": "text", "text": "be brief"}]
    history = History(system=(message("system", parts),), summary="they met")
    assert history.prompt[0]["content"][0] == parts[0]
    assert history.prompt[0]["content"][1]["text"].endswith("they met")
    assert len(parts) == 1


def test_without_a_new_summary_the_former_one_stays():
    history = talk("user", "assistant", "user", "assistant", "user").without(1, "they met")
    assert history.without(1).summary == "they met"
    assert history.without(1, "they parted").summary == "they parted"


texts = st.text()
contents = texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), min_size=1)
messages = st.lists(st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), contents)).map(tuple)
histories = st.builds(
    History, system=messages, messages=messages, dropped_turns=st.integers(0, 2**31), summary=st.none() | texts
)


@given(histories)
def test_what_is_stored_is_read_back(history):
    assert History.from_json(unpack(pack(history.to_json()))) == history


def test_what_is_stored_is_smaller():
    history = History(messages=tuple(message("user", f"Tell me about the town number {n}.") for n in range(100)))
    assert len(pack(history.to_json())) < len(history.to_json()) / 5


GOOD = {"system": [], "messages": [message("user")], "dropped_turns": 0, "summary": None}


@pytest.mark.parametrize("change", [
    {"messages": None},
    {"messages": ["hi"]},
    {"messages": [{"role": 5, "content": ""}]},
    {"messages": [{"role": "user"}]},
    {"system": {}},
    {"dropped_turns": True},
    {"summary": 5},
    {"more": 1},
])  # fmt: skip
def test_what_nobody_here_wrote_is_refused(change):
    with pytest.raises(UnreadableHistory):
        History.from_json(orjson.dumps(GOOD | change))


@pytest.mark.parametrize("value", [b"", b"{}", b"\x02" + zlib.compress(b"{}"), b"\x01{}", b"\x01"])
def test_bytes_of_another_form_are_refused(value):
    with pytest.raises(UnreadableHistory):
        History.from_json(unpack(value))


def test_a_value_that_unfolds_without_end_is_refused():
    bomb = zlib.compressobj()
    zeros = bytes(2**20)
    pieces = [bomb.compress(zeros) for _ in range(MAX_VALUE_BYTES // len(zeros) + 1)]
    value = b"\x01" + b"".join(pieces) + bomb.flush()
    assert len(unpack(value)) == MAX_VALUE_BYTES
    with pytest.raises(UnreadableHistory):
        History.from_json(unpack(value))
