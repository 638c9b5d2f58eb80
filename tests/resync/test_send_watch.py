"""The timer that brings a sender back from a broadcast that no request bounds."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from resync import ChannelError
from resync.send_watch import SendWatch

SHORT_S, LONG_S = 0.02, 60.0


class Heard:
    """What a watch did: whom it brought back, and what its observer heard."""

    def __init__(self, *, limit_s: float, settle_s: float = LONG_S) -> None:
        self.gathered = 0
        self.errors: list[ChannelError] = []
        self.phases: list[str] = []
        self.limits: list[float] = []
        self.brought_back = threading.Event()
        self.watch = SendWatch(
            limit_s=limit_s,
            settle_s=settle_s,
            bring_back=self._bring_back,
            progress=lambda: self.gathered,
            observe=self._observe,
        )

    def _bring_back(self, error: ChannelError) -> None:
        self.errors.append(error)
        self.brought_back.set()

    def _observe(self, step: str, /, **details: Any) -> None:
        assert step == "broadcasts"
        self.phases.append(details["phase"])
        if "limit_s" in details:
            self.limits.append(details["limit_s"])


def test_brought_back() -> None:
    """A sender that takes no next step is brought back, with words that say since when."""
    heard = Heard(limit_s=SHORT_S)
    with heard.watch.sending():
        heard.watch.arm("update")
        assert heard.brought_back.wait(5)
    assert "within 0.02 s after every engine had answered update" in str(heard.errors[0])
    assert len(heard.errors) == 1
    assert (heard.phases, heard.limits) == (["begin", "end"], [SHORT_S])


@pytest.mark.parametrize("again", [False, True], ids=["disarmed", "armed-again"])
def test_came_on(again: bool) -> None:
    """A next step in time ends the wait, and every wait that begins also ends."""
    heard = Heard(limit_s=LONG_S)
    with heard.watch.sending():
        heard.watch.arm("update")
        if again:
            heard.watch.arm("finish")
        heard.watch.disarm()
        heard.watch.disarm()
    assert heard.phases == ["begin", "end"] * (2 if again else 1)
    assert heard.errors == []


def test_nobody_sends() -> None:
    """An answer that comes after the sender has gone arms nothing."""
    heard = Heard(limit_s=SHORT_S)
    heard.watch.arm("update")
    assert heard.phases == ["begin", "end"]
    assert not heard.brought_back.wait(5 * SHORT_S)


def test_not_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that does not come back although its channel was dropped is told of."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def critical(message: str, *arguments: object) -> None:
        told.put(message % arguments)

    monkeypatch.setattr("resync.send_watch.logger.critical", critical)
    heard = Heard(limit_s=LONG_S, settle_s=SHORT_S)
    with heard.watch.sending():
        heard.watch.expect_back()
        assert "not come back for 0.02 s since" in told.get(timeout=5)
    assert heard.limits == [SHORT_S]


def test_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that gathers on after its channel was dropped is let be, however long it takes."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr("resync.send_watch.logger.critical", lambda *_: told.put("told"))
    heard = Heard(limit_s=LONG_S, settle_s=SHORT_S)
    steps = threading.Semaphore(0)

    def progress() -> int:
        if heard.gathered < 3:
            heard.gathered += 1
            steps.release()
        return heard.gathered

    monkeypatch.setattr(heard.watch, "_progress", progress)
    with heard.watch.sending():
        heard.watch.expect_back()
        for _ in range(3):
            assert steps.acquire(timeout=5)
        assert told.get(timeout=5) == "told"
    assert heard.limits == [SHORT_S] * 3
