"""The valid parts of one scenario, as the checks between them take it, and how these complain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.scenario import (
    Engines,
    Expectation,
    FaultSpec,
    Restart,
    StagedRequest,
    Trainer,
)
from harness.wording import show
from harness.yaml_document import Place, Problem


@dataclass
class Parts:
    """The valid parts of one scenario; ``None``, or absent from a list, where a part is broken."""

    trainer: Trainer | None = None
    engines: Engines | None = None
    transport: str | None = None
    packed: bool | None = None
    draft: bool | None = None
    pushes: int | None = None
    faults: Mapping[int, FaultSpec] = field(default_factory=dict)
    restarts: Mapping[int, Restart] = field(default_factory=dict)
    before_connect: Mapping[int, StagedRequest] = field(default_factory=dict)
    expect: Mapping[Place, Expectation] = field(default_factory=dict)
    num_expectations: int | None = None
    waive: Mapping[str, str] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()


def check_index(found: int | str | None, place: Place, count: int, limit: str) -> Iterator[Problem]:
    """Yield that a number is out of range, where it is: there are ``count``, as ``limit`` says."""
    if isinstance(found, int) and found >= count:
        what = "an engine" if limit == "engines.count" else f"a {place[-1]}"
        yield problem(
            place,
            f"{what} from 0 to {count - 1} ({limit} is {count})",
            found,
            f"Lower it, or raise {limit}.",
        )


def problem(place: Place, expected: str, found: Any, next_step: str) -> Problem:
    """Return a problem with its message: expected, found, and what to do."""
    shown = found if isinstance(found, str) else show(found)
    return Problem(place, f"expected {expected}, found {shown}. {next_step}")
