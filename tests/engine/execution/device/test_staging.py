"""Words on their way to the device are not written over."""

import struct

import numpy as np
import pytest
import torch

from engine.execution.device.arena import Arena, Changes, Words, float_word, long_words
from engine.execution.device.staging import Staging, fences_of

CPU = torch.device("cpu")


class RecordingFence:
    """Writes down who waits for whom."""

    def __init__(self, log: list[tuple[str, int]], name: int) -> None:
        self._log, self._name = log, name

    def record(self) -> None:
        self._log.append(("record", self._name))

    def synchronize(self) -> None:
        self._log.append(("wait", self._name))


def words(*numbers: int) -> Words:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(("cores", "blocking"), [(2, True), (4, True), (16, False)])
def test_waiting_for_a_gpu_takes_a_core_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch, cores: int, blocking: bool
) -> None:
    made: list[bool] = []
    monkeypatch.setattr(torch.cuda, "Event", lambda *, blocking: made.append(blocking))
    monkeypatch.setattr("engine.execution.device.staging.usable_cores", lambda: cores)
    fences_of(torch.device("cuda", 0))()
    assert made == [blocking]


def test_buffers_take_turns_and_one_is_waited_for_before_it_is_used_again() -> None:
    log: list[tuple[str, int]] = []
    names = iter(range(2))
    staging = Staging(CPU, lambda: RecordingFence(log, next(names)))
    for _ in range(3):
        staging.upload(words(1, 2, 3))
    assert log == [("wait", 0), ("record", 0), ("wait", 1), ("record", 1), ("wait", 0), ("record", 0)]


def test_an_upload_leaves_the_one_before_it_on_the_host() -> None:
    staging = Staging(CPU, lambda: RecordingFence([], 0))
    staging.upload(words(1, 2, 3))
    staging.upload(words(4, 5, 6))
    assert [host[:3].tolist() for host in staging._hosts] == [[1, 2, 3], [4, 5, 6]]


def test_uploads_of_any_size() -> None:
    staging = Staging(CPU, lambda: RecordingFence([], 0))
    for size in (1, 4096, 4097, 70_000, 2):
        sent = words(*range(-5, size - 5))
        assert staging.upload(sent).tolist() == sent.tolist()


def test_changes_say_where_each_run_starts_and_goes() -> None:
    changes = Changes()
    changes.put(100, [7, 8])
    changes.put(5, [])
    changes.put(20, (9,))
    assert changes.runs == 2
    assert changes.words().tolist() == [0, 2, 100, 20, 7, 8, 9]


def test_a_table_comes_before_the_other_changes() -> None:
    changes = Changes.of_table(50, words(1, 2, 3))
    changes.put(100, [7, 8])
    assert changes.runs == 2
    assert changes.words().tolist() == [0, 3, 50, 100, 1, 2, 3, 7, 8]


def test_tables_of_an_arena_do_not_meet() -> None:
    arena = Arena([(3, 5), (2, 70), (1, 1)], CPU)
    for index, (lines, words) in enumerate([(3, 5), (2, 70), (1, 1)]):
        arena.table(index).fill_(index + 1)
        place = arena.place(index, lines - 1, words - 1)
        assert int(arena.words[place]) == index + 1
        assert arena.place(index, 0) % 64 == 0
    assert [int((arena.words == index + 1).sum()) for index in range(3)] == [15, 140, 1]


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, 3e38])
def test_bits_of_floats(value: float) -> None:
    stored = torch.tensor([float_word(value)], dtype=torch.int32).view(torch.float32)
    assert stored.item() == struct.unpack("<f", struct.pack("<f", value))[0]


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_bits_of_seeds(value: int) -> None:
    stored = torch.tensor(long_words(value), dtype=torch.int32).view(torch.int64)
    assert int(stored) % 2**64 == value % 2**64
