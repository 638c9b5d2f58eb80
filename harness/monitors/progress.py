"""Follows the journal of a run that is under way: when it last moved, and what is open in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.journal import JournalReader

# Events that come without the push moving: what the request load is served, and what the monitor
# itself says.
BACKGROUND_EVENTS = frozenset({"token", "diagnosis"})

Wait = tuple[str, str, Any, Any]  # process, step, engine, action: what names a bounded wait


@dataclass
class Progress:
    """The run so far, from its journal.

    Attributes:
        last_s: time of the last event that was progress of the push, on the monotonic clock.
        events: every event so far.
        requests: (engine, number) -> the event that began a request that has not ended.
        gathers: rank -> the tensor that it is gathering.
        data_plane: process -> the event that began the wait of its end of the channel.
        doing: process -> its last event, in a few words.
        timers: bounded wait -> the events that began those of its name that have not ended: a step
            that a target reports with ``limit_s``.
        telling: the processes that report their requests so.
    """

    reader: JournalReader
    last_s: float
    events: list[dict[str, Any]] = field(default_factory=list)
    requests: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    gathers: dict[str, str] = field(default_factory=dict)
    data_plane: dict[str, dict[str, Any]] = field(default_factory=dict)
    doing: dict[str, str] = field(default_factory=dict)
    timers: dict[Wait, list[dict[str, Any]]] = field(default_factory=dict)
    telling: set[str] = field(default_factory=set)

    def catch_up(self) -> None:
        """Read what was added to the journal."""
        for event in self.reader.read_new():
            self.events.append(event)
            if not is_progress(event):
                continue
            self.last_s = max(self.last_s, event["t"])
            self._note(event)

    def first_mover(self, begin: int) -> str | None:
        """Return whose event was the first progress from event number ``begin`` on, if any."""
        return next((e["who"] for e in self.events[begin:] if is_progress(e)), None)

    def forget(self, who: str) -> None:
        """A process has ended: nothing that it had open will be closed."""
        self.gathers.pop(who, None)
        self.data_plane.pop(who, None)
        for key in [key for key in self.requests if key[0] == who]:
            del self.requests[key]
        for wait in [wait for wait in self.timers if wait[0] == who]:
            del self.timers[wait]

    def _note(self, event: Mapping[str, Any]) -> None:
        who, begins = event["who"], event.get("phase") == "begin"
        match event["event"]:
            case "request":
                key = (who, event["id"])
                self.requests[key] = dict(event)
                if not begins:
                    del self.requests[key]
                self.doing[who] = event["point"]
            case "gather":
                self.gathers[who] = event["tensor"]
                if not begins:
                    del self.gathers[who]
                self.doing[who] = f"gather {event['tensor']}"
            case "data_plane" if event["op"] == "synchronize":  # the only call that blocks
                self.data_plane[who] = dict(event)
                if not begins:
                    del self.data_plane[who]
            case "step":
                self.doing[who] = _step_in_words(event)
                self._note_timer(who, event, begins=begins)

    def _note_timer(self, who: str, event: Mapping[str, Any], *, begins: bool) -> None:
        wait = (who, event["name"], event.get("engine"), event.get("action"))
        if begins and event.get("limit_s") is not None:
            self.timers.setdefault(wait, []).append(dict(event))
            if event["name"] == "request":
                self.telling.add(who)
        elif not begins and wait in self.timers:
            del self.timers[wait][0]  # of several of one name the ends are told apart by nobody
            if not self.timers[wait]:
                del self.timers[wait]


def _step_in_words(event: Mapping[str, Any]) -> str:
    """Return a step's name; of a request what is asked for, and of which engine."""
    if event["name"] == "request" and "action" in event:
        return f"{event['action']} of engine {event.get('engine')}"
    return str(event["name"])


def is_progress(event: Mapping[str, Any]) -> bool:
    """Whether an event of the journal says that the push moved."""
    return event["event"] not in BACKGROUND_EVENTS and not event.get("load")
