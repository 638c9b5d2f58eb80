"""``result.json``: what was seen of one scenario and its verdict, beside its journal.

The journal stays what happened. A verdict is an opinion about it, formed when every process has
ended: it is written whole, once, to a file of its own, so that a journal that breaks off keeps its
verdict, and all verdicts of a run are read without reading a journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from harness.contracts import (
    CheckResult,
    EngineFinal,
    Json,
    ScenarioResult,
    Verdict,
    WeightOracle,
)
from harness.observation import EngineSeen, PushSeen, RunSeen
from harness.reporting.shapes import KNOWN
from harness.scenario import Scenario
from harness.verdicts.expectations import generation
from harness.verdicts.serving import WeightsOf

RESULT = "result.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Details:
    """What a report tells of one scenario besides its result. All of it is JSON.

    Attributes:
        scenario: the scenario as its file says, defaults included.
        control: folder of the control's journal, relative to the run's; ``None`` without one.
        pushes: each push, and the connect before it: how it ended on every rank, and every engine
            before and after; the closing push has ``closing`` set.
        weights: fingerprint -> which weights they are: ``start``, ``push 1``, ``mixed``.
    """

    scenario: Mapping[str, Json] = field(default_factory=dict)
    control: str | None = None
    pushes: tuple[Mapping[str, Json], ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)


def details_of(
    scenario: Scenario, run: RunSeen | None, *, control: str | None, oracle: WeightOracle
) -> Details:
    """Return what reports need of a run; of one that the harness could not run, the scenario.

    Args:
        control: folder of the control's journal, relative to that of the run.
    """
    asked = scenario.model_dump(mode="json", exclude_none=True)
    if run is None:
        return Details(scenario=asked, control=control)
    weights = WeightsOf(scenario, oracle)
    pushes = [*run.pushes, *([] if run.closing is None else [run.closing])]
    return Details(
        scenario=asked,
        control=control,
        pushes=tuple(_push(push, weights, closing=push is run.closing) for push in pushes),
        weights={print_: weights.name(print_) for print_ in _fingerprints(run, pushes)},
    )


def write_result(result: ScenarioResult, details: Details) -> None:
    """Write ``result.json`` beside the journal of ``result``; whoever reads finds all or nothing.

    Raises:
        OSError: the folder cannot be written to.
    """
    document = {
        "schema": SCHEMA,
        "result": vars(result) | {"journal": result.journal.name},
        "details": vars(details),
    }
    result.journal.parent.mkdir(parents=True, exist_ok=True)
    path = result.journal.with_name(RESULT)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document, default=_plain), encoding="ascii")
    os.replace(new, path)


def read_result(path: Path) -> tuple[ScenarioResult, Details]:
    """Return what `write_result` wrote.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, or of another schema; says what was found.
    """
    try:
        document = _loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, found {document['schema']}")
        for part, shape in KNOWN.items():
            shape(document[part], part)
        result, details = document["result"], document["details"]
        lists = {key: tuple(result[key]) for key in ("outcomes", "attempts")}
        read = ScenarioResult(
            **result
            | lists
            | {
                "verdict": Verdict(result["verdict"]),
                "engines": tuple(EngineFinal(**each) for each in result["engines"]),
                "checks": tuple(CheckResult(**each) for each in result["checks"]),
                "journal": path.with_name(result["journal"]),
            }
        )
        return read, Details(**details | {"pushes": tuple(details["pushes"])})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a result of a scenario, found {error!r}") from error


def _loads(data: bytes) -> Any:
    """``json.loads`` at half its cost; orjson refuses lone surrogates, which engines print."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)


def _plain(value: Any) -> Any:
    """Return as a dict what JSON has no name for: a dataclass, not copied in depth, or a map."""
    return dict(value) if isinstance(value, Mapping) else vars(value)


def _push(push: PushSeen, weights: WeightsOf, *, closing: bool) -> dict[str, Json]:
    halted = push.halted
    return {
        "number": push.number,
        "closing": closing,
        "outcome": push.outcome,
        "version": push.version,
        "expected_weights": weights.step(push.number),
        "connect_attempts": push.connect_attempts,
        "connect_failed": push.connect_failed,
        "stalls": [str(stall) for stall in push.stalls],
        "halted": None
        if halted is None
        else {
            "kind": halted.kind,
            "classification": str(halted.classification),
            "sentence": halted.sentence,
            "waited_s": halted.waited_s,
        },
        "ranks": {str(rank): vars(seen) for rank, seen in push.ranks.items()},
        "before": [_engine(engine, weights) for engine in push.before],
        "after": [_engine(engine, weights) for engine in push.after],
    }


def _engine(engine: EngineSeen, weights: WeightsOf) -> dict[str, Any]:
    return vars(engine) | {
        "generation": generation(engine),
        "weights": weights.name(engine.fingerprint) if engine.alive else "unknown",
    }


def _fingerprints(run: RunSeen, pushes: Iterable[PushSeen]) -> set[str]:
    seen = {event["fingerprint"] for event in run.events if event["event"] == "token"}
    seen |= {engine.fingerprint for push in pushes for engine in (*push.before, *push.after)}
    return {each for each in seen if isinstance(each, str)}
