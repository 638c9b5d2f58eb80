"""What needs more than one field to judge about a fault: where it can strike, and whom."""

from __future__ import annotations

from collections.abc import Iterator

from harness.fault_points import FAULT_POINTS, FaultPoint
from harness.faults import FAULTS
from harness.scenario import FaultSpec
from harness.scenario_parts import Parts, check_index, problem
from harness.scenario_values import RANDOM
from harness.wording import near, unknown
from harness.yaml_document import Place, Problem


def check_faults(parts: Parts) -> Iterator[Problem]:
    """Yield what is wrong with faults: impossible pairs, wrong addresses, selectors, pushes."""
    for number, fault in parts.faults.items():
        place: Place = ("faults", number)
        if fault.at not in FAULT_POINTS:
            yield Problem((*place, "at"), unknown(fault.at, FAULT_POINTS, what="a fault point of"))
            continue
        point = FAULT_POINTS[fault.at]
        yield from _check_pair(fault, point, place, parts)
        yield from _check_process(fault, point, place)
        yield from _check_address(fault, point, place, parts)
        yield from _check_selectors(fault, point, place, parts)
        if parts.pushes is not None and fault.push > parts.pushes:
            yield problem(
                (*place, "push"),
                f"a push from 0 (the connect) to {parts.pushes}",
                fault.push,
                "Lower it, or raise pushes.",
            )


def _check_pair(
    fault: FaultSpec, point: FaultPoint, place: Place, parts: Parts
) -> Iterator[Problem]:
    """A kind strikes at its own points alone, and some points are reached on one transport."""
    kinds = [kind for kind in FAULTS if FAULTS[kind].can_strike(fault.at)]
    if fault.kind not in kinds:
        possible = [name for name in FAULT_POINTS if FAULTS[fault.kind].can_strike(name)]
        yield problem(
            (*place, "at"),
            f"a point that {fault.kind} can strike ({', '.join(possible)})",
            fault.at,
            f"{near(fault.at, possible)} {fault.at} can be struck by {', '.join(kinds)}.",
        )
    elif parts.transport is not None and point.transport not in (None, parts.transport):
        possible = [
            name
            for name, other in FAULT_POINTS.items()
            if other.transport in (None, parts.transport)
            and other.role == point.role
            and FAULTS[fault.kind].can_strike(name)
        ]
        instead = f"strike one of {', '.join(possible)}" if possible else "remove the fault"
        yield problem(
            (*place, "at"),
            f"a point that a push over {parts.transport} reaches",
            f"{fault.at}, which only {point.transport} reaches",
            f"Set transport: {point.transport}, or {instead}.",
        )


def _check_process(fault: FaultSpec, point: FaultPoint, place: Place) -> Iterator[Problem]:
    """A fault in a thread strikes that thread's own process."""
    process = fault.options().get("process")
    allowed = {"engine": ("server", "core", "worker"), "worker": ("worker",), "rank": ()}
    if process is not None and process not in allowed[point.role]:
        expected = " or ".join(allowed[point.role]) or "no process"
        yield problem(
            (*place, "process"),
            f"{expected} at {fault.at}, where a thread strikes its own process",
            process,
            "Remove it, or place the fault at a point of engine.*.",
        )


def _check_address(
    fault: FaultSpec, point: FaultPoint, place: Place, parts: Parts
) -> Iterator[Problem]:
    takes, other = ("rank", "engine") if point.role == "rank" else ("engine", "rank")
    if getattr(fault, takes) is None:
        message = f"expected the key {takes} beside {fault.at}, found none. Add a number or all."
        yield Problem((*place, takes), message)
    if getattr(fault, other) is not None:
        yield Problem(
            (*place, other),
            f"expected {takes} beside {fault.at}, found {other}. Write {takes} instead.",
            at_key=True,
        )
    trainer, engines = parts.trainer, parts.engines
    if takes == "rank" and trainer is not None:
        yield from check_index(fault.rank, (*place, "rank"), trainer.ranks, "trainer.ranks")
        in_range = isinstance(fault.rank, int) and fault.rank < trainer.ranks
        one_sender = point.by == "sender" and trainer.senders == "one"
        if one_sender and (fault.rank in ("all", RANDOM) or (in_range and fault.rank)):
            yield problem(
                (*place, "rank"),
                f"0, the sender, which alone reaches {fault.at}",
                fault.rank,
                "Write 0, or strike at rank.gather or rank.step, which every rank reaches.",
            )
    if takes == "engine" and engines is not None:
        yield from check_index(fault.engine, (*place, "engine"), engines.count, "engines.count")
        if point.role == "worker":
            workers = engines.workers
            yield from check_index(fault.worker, (*place, "worker"), workers, "engines.workers")


def _check_selectors(
    fault: FaultSpec, point: FaultPoint, place: Place, parts: Parts
) -> Iterator[Problem]:
    for key in ("worker", "session", "tensor", "name"):
        if getattr(fault, key) is not None and key not in point.narrowed_by:
            places = ", ".join(p.name for p in FAULT_POINTS.values() if key in p.narrowed_by)
            yield Problem(
                (*place, key),
                f"expected {key} only at {places}, found it at {fault.at}. Remove it.",
                at_key=True,
            )
    if fault.tensor == RANDOM and fault.at == "rank.broadcast" and parts.packed is not False:
        yield problem(
            (*place, "tensor"),
            "a name or a pattern beside rank.broadcast, where packed tensors travel under the "
            "name of the first of their chunk",
            RANDOM,
            "Set packed: false, or strike at worker.receive or rank.gather.",
        )
    if fault.session == "draft" and parts.draft is False:
        yield problem(
            (*place, "session"), "target, since draft is false", "draft", "Set draft: true."
        )
