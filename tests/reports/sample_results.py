"""The results that the reports' tests render: one of each verdict, and texts that bite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.contracts import CheckResult, EngineFinal, ScenarioResult, Verdict

GOLDEN = Path(__file__).parent / "golden"


def engine(index: int, version: str | None = "1", generation: str = "running") -> EngineFinal:
    return EngineFinal(index=index, version=version, generation=generation, weights="push 1")


def make_result(name: str, **fields: Any) -> ScenarioResult:
    """Return a passing result of that name, with ``fields`` in place of what a pass has."""
    file = name.partition("[")[0]
    passing: dict[str, Any] = {
        "path": f"scenarios/{file}.yaml",
        "proves": "A push that is refused once resends the whole model and resumes.",
        "verdict": Verdict.PASS,
        "sentence": "Every expectation and invariant held.",
        "outcomes": ("resumed",),
        "attempts": (2,),
        "engines": (engine(0), engine(1)),
        "checks": (CheckResult(name="expect.outcome", ok=True, detail="found resumed"),),
        "seconds": 0.21,
        "total_seconds": 0.4,
        "journal": Path("out") / file / "journal.jsonl",
    }
    return ScenarioResult(name=name, **(passing | fields))


FAILING = make_result(
    "draft/finish_fails[once]",
    verdict=Verdict.FAIL,
    sentence="Engine 1 runs, where the outcome raised keeps it paused.",
    outcomes=("raised",),
    engines=(engine(0, "default", "paused"), engine(1, "\x1b[31mdefault\x00\udc9b", "running")),
    checks=(
        CheckResult(name="expect.outcome", ok=False, detail="expected resumed, found raised."),
        CheckResult(
            name="invariant.outcome_table",
            ok=False,
            detail="expected generation paused on every engine after raised, found engine 1 running"
            " with [bold]tags & <brackets>.",
        ),
        CheckResult(
            name="invariant.clean_push", ok=False, detail="found none.", waived="engine 1 is lost"
        ),
    ),
)
HANGING = make_result(
    "controls/flag_after_send",
    verdict=Verdict.HANG,
    sentence="Ranks 1 to 3 wait in all_gather for rank 0, which waits in all_reduce.",
    outcomes=("deadlock",),
    attempts=(1,),
    evidence={"rank:0": 'File "flag.py", line 7 in push\n', "rank:1": "all_gather, sequence 4\n"},
)
INVALID = make_result(
    "port_taken",
    verdict=Verdict.INVALID,
    sentence="The fault port_taken at rank.bind never fired.",
    outcomes=(),
    attempts=(),
    engines=(),
    checks=(),
)
RESULTS = [
    FAILING,
    make_result("session/one_failure[engine.update-nccl]"),
    make_result("session/one_failure[engine.update-ipc]", seconds=12.345),
    make_result("session/stale", engines=tuple(engine(each) for each in range(8))),
    make_result(
        "restart/engine_between_pushes",
        outcomes=("raised", "resumed", "resumed"),
        attempts=(2, 1, 1),
        engines=(engine(0, "2"), engine(1, "default", "paused"), engine(2, None, "dead")),
    ),
    HANGING,
    INVALID,
]
