"""A scenario's faults, restarts and expectations in words, for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, get_args

from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.faults.kind import FaultKind
from harness.scenario import Expectation, FaultSpec, Restart, Scenario, StagedRequest, Trainer

OUTCOMES = {
    "resumed": "returns, and generation goes on",
    "raised": "raises",
    "degraded": "returns, with the engine that failed left out",
    "deadlock": "waits for ever: the monitor must call it a deadlock",
    "mixed": "ends as it likes: some raise and others do not",
}
_GLOB = frozenset("*?[")
RANK_0 = (0,)  # the one sender, unless a scenario says otherwise


def meanings(values: Any) -> Mapping[str, str]:
    """Return the words that a field of the language takes, each with its meaning."""
    found: Mapping[str, str] = get_args(values)[1].meanings
    return found


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, ..., 11th."""
    endings = {1: "st", 2: "nd", 3: "rd"}
    ending = "th" if number % 100 in (11, 12, 13) else endings.get(number % 10, "th")
    return f"{number}{ending}"


def joined(words: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def sentence(text: str) -> str:
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def label(fault: FaultSpec) -> str:
    """Return what the fault does, in its kind's few words: ``answers 500``."""
    kind: FaultKind = FAULTS[fault.kind].model_validate(fault.options())
    return kind.label()


def request_of(point: str) -> str:
    """Return when a fault point is reached; of a request, what it is: ``POST /pause``."""
    reached = FAULT_POINTS[point].reached
    is_request = FAULT_POINTS[point].role == "engine"
    return re.split("[:;]", reached, maxsplit=1)[0] if is_request else reached


def senders_of(trainer: Trainer, num_engines: int) -> Sequence[int]:
    """Return the ranks that send weights: the first of each slot, of each stage, or of all."""
    shares = {"one": 1, "slots": num_engines, "stages": trainer.pipeline_parallel}
    return range(0, trainer.ranks, trainer.ranks // shares[trainer.senders])


def who(fault: FaultSpec, senders: Sequence[int] = RANK_0) -> str:
    """Return whom the fault strikes: ``engine 1``, ``every worker of engine 0``, ``rank 0``."""
    if fault.role == "rank":
        if fault.rank == "all":
            return "every rank"
        role = "the sender" if len(senders) == 1 else "a sender"
        return f"rank {fault.rank}{f' ({role})' if fault.rank in senders else ''}"
    engine = "every engine" if fault.engine == "all" else f"engine {fault.engine}"
    if FAULT_POINTS[fault.at].role != "worker":
        return engine
    worker = "every worker" if fault.worker in (None, "all") else f"worker {fault.worker}"
    return f"{worker} of {engine}"


def how_often(fault: FaultSpec) -> str:
    """Return ``the 1st time``, ``the 1st and 3rd time`` or ``every time``."""
    if fault.nth == "always":
        return "every time"
    return f"the {joined(ordinal(visit) for visit in fault.nth)} time"


def when(push: int) -> str:
    """Return ``in push 3``, or that it is the connect."""
    return f"in push {push}" if push else "in the connect"


def brief(fault: FaultSpec, senders: Sequence[int] = RANK_0) -> str:
    """Return the fault in a few words: ``engine 1 answers 500 at engine.finish, push 3``."""
    often = "" if fault.nth == (1,) else f", {how_often(fault)}"
    place = f"push {fault.push}" if fault.push else "the connect"
    at = f"{fault.at}{''.join(_narrowings(fault))}"
    return f"{who(fault, senders)} {label(fault)} at {at}, {place}{often}"


def story(fault: FaultSpec, senders: Sequence[int] = RANK_0) -> str:
    """Return when the fault strikes, whom, and what it does, in one sentence."""
    narrowed = "".join(_narrowings(fault))
    at = f"at {fault.at}{narrowed} ({request_of(fault.at)})"
    optional = "" if fault.required else " It need not strike."
    struck = f"{who(fault, senders)} {label(fault)}"
    happens = f"{when(fault.push)}, {how_often(fault)} {at}, {struck}"
    return f"{sentence(happens)}.{optional}"


def _narrowings(fault: FaultSpec) -> Iterator[str]:
    if fault.session is not None:
        yield f" of the {fault.session}'s session"
    for what, wanted in (("tensor", fault.tensor), ("step", fault.name)):
        if wanted is not None:
            yield f" of {what}s like {wanted}" if set(wanted) & _GLOB else f" of {what} {wanted}"


def restart(each: Restart) -> str:
    """Return who is restarted when."""
    what = "the trainer (all ranks)" if each.what == "trainer" else f"engine {each.engine}"
    return f"{what} is restarted before push {each.before_push}"


def staged(requests: Iterable[StagedRequest]) -> list[str]:
    """Return what is sent to engines before the trainer connects, in its order."""
    told = []
    for engine, ones in groupby(requests, key=lambda each: each.engine):
        counts = ((len(list(same)), name) for name, same in groupby(one.request for one in ones))
        names = joined(name if count == 1 else f"{count} x {name}" for count, name in counts)
        whom = "every engine" if engine == "all" else f"engine {engine}"
        told.append(f"{whom} is sent {names} before the trainer connects")
    return told


def happenings(scenario: Scenario) -> list[str]:
    """Return all that is done to a scenario's run, a few words each."""
    senders = senders_of(scenario.trainer, scenario.engines.count)
    return [
        *staged(scenario.before_connect),
        *(brief(fault, senders) for fault in scenario.faults),
        *(restart(each) for each in scenario.restarts),
    ]


def stories(scenario: Scenario) -> list[str]:
    """Return all that is done to a scenario's run, a sentence each."""
    senders = senders_of(scenario.trainer, scenario.engines.count)
    return [
        *(f"{sentence(each)}." for each in staged(scenario.before_connect)),
        *(story(fault, senders) for fault in scenario.faults),
        *(f"{sentence(restart(each))}." for each in scenario.restarts),
    ]


def of_ranks(expected: Expectation) -> str:
    """Return what an expectation says of the ranks."""
    text = f"every rank {OUTCOMES[expected.outcome]} ({expected.outcome})"
    if expected.error is not None:
        text += f', saying "{expected.error}"'
    if expected.names_engine is not None:
        text += f", naming engine {expected.names_engine}"
    counts = (
        ("attempt", "attempts", expected.attempts),
        ("repeated request", "repeated requests", expected.retries),
        ("channel of the connect", "channels of the connect", expected.connect_attempts),
    )
    counted = [
        f"{count} {one if count == 1 else many}" for one, many, count in counts if count is not None
    ]
    if counted:
        text += f", after {joined(counted)}"
    if expected.stall is not None:
        text += f"; the monitor calls the stall {expected.stall}"
    return text


def of_engines(expected: Expectation, num_engines: int) -> list[str]:
    """Return what an expectation says of each engine, a line each; equal ones are one line."""
    told = (
        ('shows version "{}"', expected.per_engine("version", num_engines)),
        ("generation is {}", expected.per_engine("generation", num_engines)),
        ("its weights are reported as {}", expected.per_engine("bytes", num_engines)),
    )
    said: dict[str, list[int]] = {}
    for index in range(num_engines):
        parts = [text.format(values[index]) for text, values in told if values is not None]
        if parts:
            said.setdefault(", ".join(parts), []).append(index)
    lines = []
    for text, indexes in said.items():
        everyone = "every engine" if len(indexes) == num_engines and num_engines > 1 else ""
        names = everyone or joined(f"engine {index}" for index in indexes)
        lines.append(f"{names}: {text}")
    return lines
