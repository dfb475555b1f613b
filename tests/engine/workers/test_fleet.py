"""Where the addresses of workers come from, and what remains of them while a source fails."""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.workers.fleet import Fleet
from engine.workers.sources import DNSSource, FileSource, Member, SourceFailed, StaticSource, parse_source
from tests.support.waiting import until


def written(path: Path, *workers: object) -> Path:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"workers": workers}))
    os.replace(new, path)
    return path


class Names:
    """A resolver."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: Sequence[str] | None = hosts

    def __call__(self, name: str) -> Sequence[str]:
        if self.hosts is None:
            raise OSError(-3, "Temporary failure in name resolution")
        return self.hosts


def test_a_name_is_a_worker_at_each_of_its_addresses() -> None:
    name = "workers.chat.svc"
    four, six = ("10.0.0.1", "10.0.0.2", "10.0.0.1"), ("fd00::1", "fd00::2")
    by_four = {Member("tcp://10.0.0.1:9010", name), Member("tcp://10.0.0.2:9010", name)}
    assert DNSSource(name, 9010, Names(*four)).read() == by_four
    assert DNSSource(name, 9010, Names(*six, *four)).read() == by_four, "a worker has an address of each family"
    assert {each.address for each in DNSSource(name, 9010, Names(*six)).read()} == {
        "tcp://[fd00::1]:9010",
        "tcp://[fd00::2]:9010",
    }


@pytest.mark.parametrize("hosts", [None, ()], ids=["an error", "no address"])
def test_a_name_without_an_answer_is_a_failure(hosts: Sequence[str] | None) -> None:
    names = Names()
    names.hosts = hosts
    with pytest.raises(SourceFailed, match=r"workers\.chat\.svc"):
        DNSSource("workers.chat.svc", 9010, names).read()


def test_the_name_of_this_machine_is_resolved() -> None:
    assert Member("tcp://127.0.0.1:9010", "localhost") in DNSSource("localhost", 9010).read()


@pytest.mark.parametrize("name", ["workers..svc", "x" * 70])
def test_what_is_no_name_fails_as_a_source_does(name: str) -> None:
    with pytest.raises(SourceFailed, match="no name of a host"):
        DNSSource(name, 9010).read()


def test_a_file_is_read_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    source = FileSource(path)
    with pytest.raises(SourceFailed, match="No such file"):
        source.read()
    written(path, {"address": "tcp://10.0.0.1:9", "pid": 12}, {"address": "tcp://10.0.0.2:9", "state": "draining"})
    assert source.read() == {Member("tcp://10.0.0.1:9")}
    written(path, {"address": "tcp://10.0.0.1:9", "server_name": "w"})
    assert source.read() == {Member("tcp://10.0.0.1:9", "w")}
    written(path)
    assert source.read() == frozenset()


@pytest.mark.parametrize("text", ["", "[]", '{"workers": [{"address": "10.0.0.1"}]}', '{"workers": [{}]}', "\xff"])
def test_what_is_no_fleet_file_is_a_failure(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SourceFailed, match=r"fleet\.json"):
        FileSource(path).read()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tcp://10.0.0.1:9010", StaticSource),
        ("tcp+dns://workers:9010", DNSSource),
        ("file:///run/turnpike/fleet.json", FileSource),
    ],
)
def test_the_forms_of_a_source(text: str, kind: type) -> None:
    assert isinstance(parse_source(text), kind)


@pytest.mark.parametrize(
    "text", ["10.0.0.1:9", "http://a:1", "tcp+dns://workers", "file://host/x", "file:///", "tcp://a"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has the form"):
        parse_source(text)


class Planned:
    """A source whose answers are planned; None: it fails."""

    interval_seconds = 0.01

    def __init__(self, *answers: frozenset[Member] | None) -> None:
        self.answers = list(answers)

    def read(self) -> frozenset[Member]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise SourceFailed("planned")
        return answer


ANSWERS = st.none() | st.frozensets(
    st.builds(Member, st.sampled_from(["tcp://a:1", "tcp://b:1", "tcp://c:1"]), st.sampled_from([None, "name"])),
    max_size=3,
)


@given(st.lists(st.lists(ANSWERS, min_size=6, max_size=6), min_size=1, max_size=3))
def test_the_fleet_has_the_last_answer_of_each_source(plans: list[list[frozenset[Member] | None]]) -> None:
    fleet = Fleet([Planned(*plan) for plan in plans])
    last: list[frozenset[Member]] = [frozenset() for _ in plans]
    for turn in range(6):
        before = list(last)
        for index, plan in enumerate(plans):
            answer = plan[turn]
            last[index] = last[index] if answer is None else answer
            assert fleet.read(index) == (last[index] != before[index])
        members = fleet.members()
        assert {each.address for each in members} == {each.address for some in last for each in some}
        assert len({each.address for each in members}) == len(members), "an address twice"
        assert members <= frozenset().union(*last)


def test_changes_are_reported_by_a_thread_for_each_source() -> None:
    a, b = frozenset({Member("tcp://a:1")}), frozenset({Member("tcp://b:1")})
    stuck, reported = threading.Event(), threading.Event()

    class Slow:
        interval_seconds = 0.01

        def read(self) -> frozenset[Member]:
            stuck.wait(30)
            return b

    fleet = Fleet([Slow(), Planned(a, None, a, b), StaticSource("tcp://c:1")])
    fleet.read(1)
    fleet.read(2)
    assert not fleet.is_static
    fleet.watch(reported.set)
    until(lambda: fleet.members() == b | {Member("tcp://c:1")})
    assert reported.is_set()
    stuck.set()
    fleet.close()
