"""The buffer between the engine and the reader of a call: bounded, in order, and closed by every way out."""

import asyncio
from dataclasses import dataclass, field

import pytest

from engine.errors import EngineError
from engine.request import FinishReason, TextDelta, TokenDelta, Usage
from engine.runtime.output_stream import FEW_UNREAD_DELTAS, MAX_BATCH_TOKENS, MAX_UNREAD_DELTAS, OutputStream


@dataclass
class FakeChoice:
    """Its text is its tokens. A delta with an error fails it."""

    index: int
    finished: bool = False

    @property
    def id(self) -> str:
        return f"r{self.index}"

    def read(self, delta: TokenDelta) -> TextDelta:
        if delta.error:
            raise EngineError(delta.error)
        self.finished = delta.finish_reason is not None
        text = "".join(map(str, delta.token_ids))
        return TextDelta(self.index, text, delta.token_ids, finish_reason=delta.finish_reason, usage=delta.usage)


@dataclass
class FakeControl:
    """Records the calls to the engine. `going`: submitting waits for it."""

    going: asyncio.Event | None = None
    failure: Exception | None = None
    told: list[tuple[str, list[int]]] = field(default_factory=list)

    async def submit(self) -> None:
        if self.going is not None:
            await self.going.wait()
        if self.failure is not None:
            raise self.failure
        self.told.append(("submit", []))

    def register(self, choices, receiver) -> None:
        self.told.append(("register", [choice.index for choice in choices]))

    def forget(self, choices) -> None:
        self.told.append(("forget", [choice.index for choice in choices]))

    def pause(self, choices) -> None:
        self.told.append(("pause", [choice.index for choice in choices]))

    def resume(self, choices) -> None:
        self.told.append(("resume", [choice.index for choice in choices]))

    def abort(self, choices, on_abort=None) -> None:
        self.told.append(("abort", [choice.index for choice in choices]))


def stream_of(choices: int = 1, control: FakeControl | None = None) -> tuple[OutputStream, FakeControl]:
    control = control or FakeControl()
    return OutputStream([FakeChoice(index) for index in range(choices)], control), control  # type: ignore[arg-type]


def delta(choice: int = 0, *tokens: int, ends: bool = False, error: str | None = None) -> TokenDelta:
    reason, usage = (FinishReason.STOP, Usage(1, 1)) if ends else (None, None)
    return TokenDelta(f"r{choice}", tokens, finish_reason=reason, usage=usage, error=error)


async def submitted() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_choices_of_all_prompts_are_read_as_one_in_the_order_in_which_they_come() -> None:
    stream, control = stream_of(choices=4)
    async with stream:
        await submitted()
        for choice in (2, 0, 3, 1):
            stream.push(delta(choice, choice, ends=True))
        assert [(each.index, each.text) for each in await stream.next_batch()] == [
            (2, "2"),
            (0, "0"),
            (3, "3"),
            (1, "1"),
        ]
        assert await stream.next_batch() == []
    assert control.told[:2] == [("register", [0, 1, 2, 3]), ("submit", [])]
    assert control.told[2:] == [("forget", [0, 1, 2, 3]), ("abort", [])]


async def test_consecutive_deltas_of_a_choice_are_joined_and_a_batch_is_bounded() -> None:
    stream, _ = stream_of(choices=2)
    async with stream:
        for token in range(3):
            stream.push(delta(0, token))
        stream.push(delta(1, 7))
        assert [each.text for each in await stream.next_batch()] == ["012", "7"]
        for _ in range(MAX_BATCH_TOKENS + 6):
            stream.push(delta(0, 1))
        assert [len(each.token_ids) for each in await stream.next_batch()] == [MAX_BATCH_TOKENS]
        assert [len(each.token_ids) for each in await stream.next_batch()] == [6]
        stream.push(delta(1, *range(MAX_BATCH_TOKENS + 1)))
        stream.push(delta(0, 1))
        assert len(await stream.next_batch()) == 1, "a delta that is longer than the bound comes alone"


async def test_what_is_not_read_is_bounded_by_a_pause() -> None:
    stream, control = stream_of()
    async with stream:
        await submitted()
        for _ in range(MAX_UNREAD_DELTAS - 1):
            stream.push(delta(0, 1))
        assert "pause" not in dict(control.told)
        stream.push(delta(0, 1))
        stream.push(delta(0, 1))
        assert [name for name, _ in control.told].count("pause") == 1
        read = 0
        while read <= MAX_UNREAD_DELTAS - FEW_UNREAD_DELTAS:
            assert "resume" not in dict(control.told)
            read += sum(len(each.token_ids) for each in await stream.next_batch())
        assert control.told[-1] == ("resume", [0])


async def test_a_failure_comes_after_the_deltas_before_it_and_ends_the_others() -> None:
    stream, control = stream_of(choices=2)
    async with stream:
        await submitted()
        stream.push(delta(0, 1))
        stream.push(delta(1, error="lost"))
        assert len(await stream.next_batch()) == 1
        with pytest.raises(EngineError, match="lost"):
            await stream.next_batch()
    assert control.told[-1] == ("abort", [0, 1])


async def test_a_call_that_cannot_be_submitted_fails_its_reader() -> None:
    stream, control = stream_of(control=FakeControl(failure=EngineError("closed")))
    with pytest.raises(EngineError, match="closed"):
        async with stream:
            await stream.next_batch()
    assert control.told[-1] == ("abort", [0])


async def test_failing_a_call_aborts_it_at_once_and_drops_what_is_unread() -> None:
    stream, control = stream_of()
    async with stream:
        await submitted()
        stream.push(delta(0, 1))
        stream.fail(KeyError("gone"))
        assert control.told[-1] == ("abort", [0])
        with pytest.raises(KeyError):
            await stream.next_batch()
    assert [name for name, _ in control.told].count("abort") == 1


@pytest.mark.parametrize("way", ["fail", "leave", "cancel"])
async def test_a_call_that_ends_before_it_is_submitted_never_is(way: str) -> None:
    going = asyncio.Event()
    stream, control = stream_of(control=FakeControl(going=going))

    async def read() -> None:
        async with stream:
            if way != "leave":
                await stream.next_batch()

    reader = asyncio.create_task(read())
    await submitted()
    if way == "fail":
        stream.fail(KeyError("gone"))
    elif way == "cancel":
        reader.cancel()
    done, _ = await asyncio.wait([reader], timeout=5)
    assert done
    going.set()
    await submitted()
    assert "submit" not in dict(control.told)
    assert control.told[-1] == ("abort", [0])
    assert reader.cancelled() == (way == "cancel")
    if way == "fail":
        assert isinstance(reader.exception(), KeyError)


async def test_a_reader_that_fails_leaves_nothing_behind() -> None:
    stream, control = stream_of(choices=2)
    with pytest.raises(ZeroDivisionError):
        async with stream:
            await submitted()
            stream.push(delta(1, 1, ends=True))
            await stream.next_batch()
            raise ZeroDivisionError
    assert control.told[-2:] == [("forget", [0, 1]), ("abort", [0])]
