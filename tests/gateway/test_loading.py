"""Loading on a thread of its own: its result, and its end when the caller has been cancelled."""

import threading

import pytest

from gateway.errors import OperatorError
from gateway.process.loading import loading
from gateway.process.progress import Report


def silent(what: str, done: int, total: int) -> None:
    pass


def test_what_is_loaded_comes_out() -> None:
    with loading(lambda report: "model", silent) as loaded:
        assert loaded.result(60) == "model"


def test_reports_go_through() -> None:
    heard: list[tuple[str, int, int]] = []

    def load(report: Report) -> None:
        report("loading a", 1, 2)

    with loading(load, lambda *words: heard.append(words)) as loaded:
        loaded.result(60)
    assert heard == [("loading a", 1, 2)]


def test_an_error_comes_out_as_it_is() -> None:
    def load(report: Report) -> None:
        raise OperatorError("there is no such model")

    with pytest.raises(OperatorError, match="there is no such model"), loading(load, silent) as loaded:
        loaded.result(60)


def test_who_leaves_before_ends_it_at_its_next_report() -> None:
    began, left, went_on = threading.Event(), threading.Event(), threading.Event()

    def load(report: Report) -> None:
        began.set()
        assert left.wait(60)
        while True:
            report("loading a", 1, 2)
            if cancelled.done():
                went_on.set()  # a report after the block has been left went through
                return

    with pytest.raises(OperatorError, match="no price"), loading(load, silent) as cancelled:
        assert began.wait(60)
        left.set()
        raise OperatorError("no price")
    assert cancelled.done()
    assert not went_on.is_set()
