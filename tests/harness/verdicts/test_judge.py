"""From a run and its control to the one verdict, and the sentence that goes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from observed import (
    Oracle,
    dead,
    failed_push,
    halt,
    make_push,
    make_run,
    make_scenario,
    paused,
    raised,
    returned,
    serving,
)

from harness.contracts import EngineFinal, ScenarioResult, Verdict
from harness.observation import RunSeen
from harness.scenario import Scenario
from harness.verdicts.judge import crashed, judge

REFUSED = {"kind": "reject", "at": "engine.update", "engine": 0}
CALM = make_run(closing=None)
STRUCK = {0: {"engine:0": (1,)}}
RAISES = {"outcome": "raised"}
FAILED = make_run(failed_push(), fired=STRUCK)
RESUMED = make_run(fired=STRUCK)
HALTED = make_run(failed_push(halted=halt()), fired=STRUCK)
OVERRAN = make_run(failed_push(halted=halt("overran")), fired=STRUCK)
RESUMED_IN_FINALLY = make_run(failed_push(after=(serving(1, label="default"),)), fired=STRUCK)
BROKEN = ("serving_consistent", "outcome_table")
HANGS_AT_THE_END = replace(FAILED, closing=failed_push(2, raised(), raised(), halted=halt()))


def _faulty(*faults: dict[str, Any], **fields: Any) -> Scenario:
    return make_scenario(*(faults or (REFUSED,)), **{"expect": RAISES, **fields})


def _fault(**fields: Any) -> dict[str, Any]:
    return {**REFUSED, **fields}


def _fired(*processes: tuple[str, tuple[int, ...]]) -> RunSeen:
    return replace(FAILED, fired={0: dict(processes)})


TWICE, BOTH = _faulty(_fault(nth=(1, 2))), _faulty(_fault(engine="all"), engines={"count": 2})
RANK = {"kind": "raise", "at": "rank.gather", "rank": 1}

# fmt: off
CASES = [
    # id, scenario, run, control, verdict, sentence
    ("pass", _faulty(), FAILED, CALM, "pass", "It holds."),
    ("pass-without-a-control", make_scenario(), make_run(), None, "pass", "It holds."),
    ("pass-tolerated", _faulty(expect=None, tolerates="it is small"), RESUMED, CALM, "pass",
     "It holds."),
    ("expectation-not-met", _faulty(), RESUMED, CALM, "fail",
     "outcome: expected raised, found resumed"),
    ("invariant-broken", _faulty(), replace(FAILED, leftovers=("port 9 is left",)), CALM, "fail",
     "port 9 is left"),

    ("deadlock-where-a-raise-was-due", _faulty(), HALTED, CALM, "hang",
     "push 1: deadlock: who waits"),
    ("overran", _faulty(), OVERRAN, CALM, "hang", "push 1: overran: who waits"),
    ("hang-before-the-fault", _faulty(), replace(HALTED, fired={}), CALM, "hang",
     "push 1: deadlock: who waits"),
    ("expected-deadlock", _faulty(expect={"outcome": "deadlock"}), HALTED, CALM, "pass",
     "It holds."),
    ("expected-deadlock-overran", _faulty(expect={"outcome": "deadlock"}), OVERRAN, CALM, "hang",
     "push 1: overran: who waits"),
    ("expected-deadlock-raised", _faulty(expect={"outcome": "deadlock"}), FAILED, CALM, "fail",
     "outcome: expected deadlock, found raised"),
    ("closing-push-deadlocks", _faulty(), HANGS_AT_THE_END, CALM, "hang",
     "the closing push: deadlock: who waits"),

    ("never-struck", _faulty(), _fired(), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 0"),
    ("never-struck-and-so-resumed", _faulty(), make_run(), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 0"),
    ("never-struck-but-not-required", _faulty(_fault(required=False)), _fired(), CALM, "pass",
     "It holds."),
    ("struck-one-of-two", BOTH, _fired(("engine:0", (1,))), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 1"),
    ("struck-the-other", _faulty(), _fired(("engine:1", (1,))), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 0"),
    ("struck-both", BOTH, _fired(("engine:0", (1,)), ("engine:1", (1,))), CALM, "pass",
     "It holds."),
    ("half-of-its-visits", TWICE, _fired(("engine:0", (1,))), CALM, "invalid",
     "fault 0 (reject at engine.update) struck engine 0 1 of 2 times"),
    ("gave-up-after-the-first-visit", TWICE, replace(RESUMED, fired={0: {"engine:0": (1,)}}), CALM,
     "fail", "outcome: expected raised, found resumed"),
    ("none-of-its-visits", TWICE, replace(RESUMED, fired={}), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 0"),
    ("all-its-visits", TWICE, _fired(("engine:0", (1, 2))), CALM, "pass", "It holds."),
    ("always-is-at-least-once", _faulty(_fault(nth="always")), _fired(("engine:0", (1, 2, 3))),
     CALM, "pass", "It holds."),
    ("always-never", _faulty(_fault(nth="always")), _fired(), CALM, "invalid",
     "fault 0 (reject at engine.update) never struck engine 0"),
    ("on-a-rank", _faulty(RANK), _fired(("rank:1", (1,))), CALM, "pass", "It holds."),
    ("on-another-rank", _faulty(RANK), _fired(("rank:0", (1,)), ("engine:1", (1,))), CALM,
     "invalid", "fault 0 (raise at rank.gather) never struck rank 1"),
    ("the-second-of-two", _faulty(REFUSED, _fault(at="engine.start")), FAILED, CALM, "invalid",
     "fault 1 (reject at engine.start) never struck engine 0"),

    ("control-meets-the-expectation", _faulty(expect=None), RESUMED, CALM, "invalid",
     "the run without faults meets the expectation as well, so the scenario proves nothing; expect "
     "something that only the fault causes, or say what it `tolerates`"),
    ("control-raises", _faulty(), FAILED, make_run(failed_push(), closing=None), "fail",
     "without faults: outcome: expected resumed, found raised"),
    ("control-leaves-things", _faulty(), FAILED, replace(CALM, leftovers=("port 9 is left",)),
     "fail", "without faults: port 9 is left"),
    ("control-raises-and-is-tolerated", _faulty(tolerates="it is small"), FAILED,
     make_run(failed_push(), closing=None), "fail",
     "without faults: outcome: expected resumed, found raised"),

    ("breaks-as-it-must", _faulty(breaks=BROKEN), RESUMED_IN_FINALLY, CALM, "pass", "It holds."),
    ("breaks-beside-an-outcome-that-the-control-has", _faulty(expect=None, breaks=BROKEN[:1]),
     make_run(make_push(after=(serving(1, label="default"),)), fired=STRUCK), CALM, "pass",
     "It holds."),
    ("breaks-nothing", _faulty(breaks=BROKEN), FAILED, CALM, "fail",
     "expected to be broken, found: holds"),
    ("breaks-something-else-too", _faulty(breaks=BROKEN[:1]), RESUMED_IN_FINALLY, CALM, "fail",
     "push 1 raised, and expected generation paused everywhere, or running as before with "
     "unchanged weights; found paused: {0: False}, changed: engines [0]"),
    ("breaks-in-the-control-too", _faulty(breaks=BROKEN), RESUMED_IN_FINALLY,
     make_run(failed_push(after=(serving(1),)), closing=None), "fail", None),

    ("waived", _faulty(waive={"clean_push": "engine 0 is lost"}),
     replace(FAILED, closing=failed_push(2)), CALM, "pass", "It holds."),
    ("waived-another", _faulty(waive={"ranks_agree": "it is new"}),
     replace(FAILED, closing=failed_push(2)), CALM, "fail",
     "the closing push: expected resumed, found raised: it failed"),
    ("waived-an-expectation-never", _faulty(waive={"outcome_table": "it is new"}), RESUMED, CALM,
     "fail", "outcome: expected raised, found resumed"),
    ("checker-crashes", _faulty(), replace(FAILED, events=({"event": "token"},)), CALM, "invalid",
     "a checker crashed: KeyError('who')"),
    ("checker-crashes-over-the-control", _faulty(), FAILED,
     replace(CALM, events=({"event": "token"},)), "invalid", "a checker crashed: KeyError('who')"),
]
# fmt: on


def _judge(scenario: Scenario, run: RunSeen, control: RunSeen | None) -> ScenarioResult:
    return judge(scenario, run, control=control, oracle=Oracle(), journal=Path("journal.jsonl"))


@pytest.mark.parametrize(
    ("scenario", "run", "control", "verdict", "sentence"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_verdicts(
    scenario: Scenario, run: RunSeen, control: RunSeen | None, verdict: str, sentence: str | None
) -> None:
    """One verdict, and the first thing that is wrong in one sentence."""
    result = _judge(scenario, run, control)
    assert result.verdict == verdict, result.checks
    if sentence is not None:
        assert result.sentence == sentence


def test_what_a_result_holds() -> None:
    """A result has what reports show of each push and each engine, and the stacks of a hang."""
    after = (serving(1), paused(0, index=1, fingerprint=None), dead(index=2))
    second = failed_push(2, connect_failed=True, after=after, halted=halt())
    scenario = make_scenario(pushes=2, engines={"count": 3}).named("a/b[c]", Path("a/b.yaml"))
    result = _judge(scenario, make_run(make_push(), second), None)
    assert (result.name, result.path, result.proves) == ("a/b[c]", "a/b.yaml", "It holds.")
    assert (result.outcomes, result.attempts) == (("resumed", "deadlock"), (1, 0))
    assert result.engines == (
        EngineFinal(index=0, version="1", generation="running", weights="push 1"),
        EngineFinal(index=1, version="default", generation="paused", weights="meta"),
        EngineFinal(index=2, version=None, generation="dead", weights="unknown"),
    )
    assert result.evidence == {"rank:0": "its stack"}
    assert (result.seconds, result.total_seconds) == (0.2, 0.3)


def test_evidence_of_the_closing_push() -> None:
    """A deadlock of the closing push comes with its stacks too."""
    assert _judge(_faulty(), HANGS_AT_THE_END, CALM).evidence == {"rank:0": "its stack"}


def test_why_an_expectation_failed() -> None:
    """A failed check says what was raised; the verdict's sentence names only its class."""
    scenario = make_scenario(expect={"outcome": "resumed", "attempts": 2})
    result = _judge(scenario, make_run(failed_push(1, raised(error_type="PushFailed"))), None)
    assert result.sentence == "outcome: expected resumed, found raised; rank 0: PushFailed"
    details = {check.name: check.detail for check in result.checks}
    assert details["expect.outcome"] == f"{result.sentence}: it failed"
    assert details["expect.attempts"] == "attempts: expected 2, found None"


def test_waivers_stay_visible() -> None:
    """A waived invariant is judged, and carries its reason."""
    scenario = _faulty(waive={"clean_push": "engine 0 is lost"})
    result = _judge(scenario, replace(FAILED, closing=failed_push(2)), CALM)
    (check,) = [check for check in result.checks if check.waived is not None]
    assert (check.name, check.ok) == ("invariant.clean_push", False)
    assert check.waived == "engine 0 is lost"


def test_attempts_that_no_target_reported() -> None:
    """A push whose target reports nothing counts as no attempt."""
    run = make_run(make_push(1, returned(result={})))
    assert _judge(make_scenario(), run, None).attempts == (0,)


def test_crashed() -> None:
    """A scenario that the harness could not run proves nothing."""
    scenario = make_scenario().named("a/b", Path("a/b.yaml"))
    result = crashed(scenario, "rank:1: it ended", journal=Path("journal.jsonl"))
    assert (result.verdict, result.sentence) == (Verdict.INVALID, "rank:1: it ended")
    assert [(check.name, check.ok) for check in result.checks] == [("harness", False)]


def test_exit_codes() -> None:
    """The worst of a run is the highest of its exit codes, and none is one that CI retries."""
    codes = {str(verdict): verdict.exit_code for verdict in Verdict}
    assert codes == {"pass": 0, "fail": 10, "hang": 11, "invalid": 12}
