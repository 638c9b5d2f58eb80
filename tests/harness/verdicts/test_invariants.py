"""Every invariant with runs that it must accept, and canaries that it must reject."""

from __future__ import annotations

from typing import Any

import pytest
from observed import (
    Oracle,
    dead,
    degraded,
    died,
    failed_push,
    halt,
    killed,
    make_push,
    make_run,
    make_scenario,
    paused,
    raised,
    returned,
    serving,
    weights,
)

from harness.observation import PushSeen, RankEnding, RunSeen
from harness.scenario import INVARIANTS
from harness.verdicts.invariants import CHECKS, Evidence
from harness.verdicts.serving import WeightsOf

AGREED = raised(causes=("engine 0 refused",))
OTHERWISE = raised(causes=("engine 1 refused",))
LOST = RankEnding(ending="blocked")
OPEN = (False, True)


def sent(number: int, *by_attempt: int) -> PushSeen:
    """Return push ``number``, which went well and reports these bytes for its attempts."""
    ending = returned(number)
    result = {**ending.result, "bytes_sent": list(by_attempt)}
    return make_push(number, returned(number, result=result), returned(number))


# fmt: off
CASES = [
    # id, invariant, the run, what it must say (nothing: it holds)
    ("all-returned", "ranks_agree", make_run(), []),
    ("all-raised", "ranks_agree", make_run(failed_push(1, AGREED, AGREED)), []),
    ("one-without-causes", "ranks_agree", make_run(failed_push(1, AGREED, raised("peer lost"))),
     []),
    ("killed-rank-has-no-say", "ranks_agree", make_run(failed_push(1, raised(), killed())), []),
    ("nobody-survived", "ranks_agree", make_run(failed_push(1, killed(), killed())), []),
    ("halted", "ranks_agree", make_run(failed_push(1, raised(), LOST, halted=halt())), []),
    ("mixed-endings", "ranks_agree", make_run(make_push(1, returned(), raised())),
     ["push 1: the ranks ended differently: {0: 'returned', 1: 'raised'}"]),
    ("one-died", "ranks_agree", make_run(make_push(1, raised(), died())),
     ["push 1: the ranks ended differently: {0: 'raised', 1: 'died'}"]),
    ("mixed-closing-push", "ranks_agree", make_run(closing=make_push(2, raised(), returned())),
     ["push 2: the ranks ended differently: {0: 'raised', 1: 'returned'}"]),

    ("all-ended", "ended_in_time", make_run(failed_push()), []),
    ("struck", "ended_in_time", make_run(failed_push(1, raised(), killed())), []),
    ("deadlock-has-its-own-name", "ended_in_time",
     make_run(failed_push(1, LOST, LOST, halted=halt())), []),
    ("died-by-itself", "ended_in_time", make_run(failed_push(1, raised(), died())),
     ["push 1: rank 1 ended with status 3: its last words"]),
    ("all-died", "ended_in_time", make_run(failed_push(1, died(), died())),
     ["push 1: rank 0 ended with status 3: its last words",
      "push 1: rank 1 ended with status 3: its last words"]),
    ("overran", "ended_in_time", make_run(failed_push(1, LOST, LOST, halted=halt("overran"))),
     ["push 1: who waits"]),
    ("died-in-the-closing-push", "ended_in_time",
     make_run(closing=failed_push(2, died(error="ended with status 0: "), killed())),
     ["push 2: rank 0 ended with status 0: "]),

    ("new-weights-everywhere", "serving_consistent", make_run(), []),
    ("raised-and-paused", "serving_consistent", make_run(failed_push()), []),
    ("raised-and-serving-as-before", "serving_consistent",
     make_run(failed_push(after=(serving(0),))), []),
    ("dirty-but-paused", "serving_consistent",
     make_run(failed_push(after=(paused(0, fingerprint="torn"),))), []),
    ("restarted-engine-serves-its-start", "serving_consistent",
     make_run(make_push(), failed_push(2, after=(serving(0, process=101),))), []),
    ("other-pushes-keep-the-last-good", "serving_consistent",
     make_run(make_push(), failed_push(2, after=(serving(1),))), []),
    ("stale-weights-new-label", "serving_consistent",
     make_run(make_push(after=(serving(0, label="1"),))),
     ["after push 1, engine 0 serves start weights, expected those of push 1"]),
    ("stale-label-new-weights", "serving_consistent",
     make_run(make_push(after=(serving(1, label="default"),))),
     ["after push 1, engine 0 serves under label 'default', the trainer counts '1'"]),
    ("engine-that-was-forgotten", "serving_consistent",
     make_run(make_push(after=(serving(1), serving(0, index=1, process=101)))),
     ["after push 1, engine 1 serves start weights, expected those of push 1",
      "after push 1, engine 1 serves under label 'default', the trainer counts '1'"]),
    ("unpublished-weights", "serving_consistent",
     make_run(failed_push(after=(serving(1, label="default"),))),
     ["after push 1, engine 0 serves push 1 weights, expected those it started with"]),
    ("torn", "serving_consistent", make_run(failed_push(after=(serving(0, fingerprint="torn"),))),
     ["after push 1, engine 0 serves mixed weights, expected those it started with"]),
    ("on-meta", "serving_consistent", make_run(make_push(after=(serving(1, fingerprint=None),))),
     ["after push 1, engine 0 serves meta weights, expected those of push 1"]),
    ("same-process-back-at-its-start", "serving_consistent",
     make_run(make_push(), failed_push(2, after=(serving(0),))),
     ["after push 2, engine 0 serves start weights, expected those of push 1"]),
    ("closing-push-of-old-weights", "serving_consistent",
     make_run(closing=make_push(2, after=(serving(1, label="2"),))),
     ["after push 2, engine 0 serves push 1 weights, expected those of push 2"]),

    ("resumed-and-running", "outcome_table", make_run(), []),
    ("raised-paused", "outcome_table",
     make_run(failed_push(after=(paused(), paused(index=1), dead(index=2)))), []),
    ("raised-running-as-before", "outcome_table", make_run(failed_push(after=(serving(0),))), []),
    ("raised-restarted-meanwhile", "outcome_table",
     make_run(failed_push(after=(serving(0, process=101),))), []),
    ("resumed-but-paused", "outcome_table", make_run(make_push(after=(paused(1),))),
     ["push 1 resumed, but not every engine runs: {0: 'paused'}"]),
    ("resumed-without-one", "outcome_table", make_run(make_push(after=(serving(), dead(index=1)))),
     ["push 1 resumed, but not every engine runs: {0: 'running', 1: 'dead'}"]),
    ("resumed-with-one-stuck", "outcome_table", make_run(make_push(after=(serving(stuck=True),))),
     ["push 1 resumed, but not every engine runs: {0: 'stuck'}"]),
    ("raised-but-running", "outcome_table", make_run(failed_push(after=(serving(1),))),
     ["push 1 raised, and expected generation paused everywhere, or running as before with "
      "unchanged weights; found paused: {0: False}, changed: engines [0]"]),
    ("raised-one-of-two-running", "outcome_table",
     make_run(failed_push(before=(serving(0), serving(0, index=1, process=101)),
                          after=(paused(), serving(0, index=1, process=101)))),
     ["push 1 raised, and expected generation paused everywhere, or running as before with "
      "unchanged weights; found paused: {0: True, 1: False}, changed: engines [0]"]),
    ("raised-moved-its-label", "outcome_table",
     make_run(failed_push(after=(serving(0, label="1"),))),
     ["push 1 raised, and expected generation paused everywhere, or running as before with "
      "unchanged weights; found paused: {0: False}, changed: engines [0]"]),
    ("degraded", "outcome_table", make_run(degraded(1, paused(index=1, process=101))), []),
    ("degraded-and-dead", "outcome_table", make_run(degraded(1, dead(index=1))), []),
    ("degraded-but-it-runs", "outcome_table",
     make_run(degraded(1, serving(0, index=1, process=101))),
     ["push 1 is degraded, and expected every engine to run but for those quarantined ([1]); "
      "found {0: 'running', 1: 'running'}"]),
    ("degraded-beside-a-dead-one", "outcome_table",
     make_run(degraded(1, paused(index=1), dead(index=2))),
     ["push 1 is degraded, and expected every engine to run but for those quarantined ([1]); "
      "found {0: 'running', 1: 'paused', 2: 'dead'}"]),
    ("degraded-without-anybody", "outcome_table", make_run(degraded(1, quarantined=())),
     ["push 1 is degraded, and expected every engine to run but for those quarantined (none); "
      "found {0: 'running'}"]),

    ("closed", "no_open_session", make_run(), []),
    ("open-in-quarantine", "no_open_session",
     make_run(degraded(1, paused(index=1, sessions=OPEN))), []),
    ("degraded-to-old-weights", "serving_consistent",
     make_run(degraded(1, paused(index=1), after=(serving(0, label="1"), paused(index=1)))),
     ["after push 1, engine 0 serves start weights, expected those of push 1"]),
    ("degraded-to-an-old-label", "serving_consistent",
     make_run(degraded(1, paused(index=1), after=(serving(1, label="0"), paused(index=1)))),
     ["after push 1, engine 0 serves under label '0', the trainer counts '1'"]),
    ("stuck-is-told-of-elsewhere", "no_open_session",
     make_run(failed_push(after=(paused(sessions=OPEN, stuck=True), dead(index=1)))), []),
    ("lost-rank-cannot-close", "no_open_session",
     make_run(failed_push(1, raised(), killed(), after=(paused(sessions=OPEN),))), []),
    ("deadlocked", "no_open_session",
     make_run(failed_push(1, LOST, LOST, halted=halt(), after=(paused(sessions=OPEN),))), []),
    ("open-in-one-worker", "no_open_session", make_run(failed_push(after=(paused(sessions=OPEN),))),
     ["after push 1, engine 0 has sessions open: (False, True)"]),
    ("open-after-a-good-push", "no_open_session",
     make_run(make_push(after=(serving(sessions=(True,)),))),
     ["after push 1, engine 0 has sessions open: (True,)"]),
    ("open-after-a-rank-died-by-itself", "no_open_session",
     make_run(failed_push(1, raised(), died(), after=(paused(sessions=OPEN),))),
     ["after push 1, engine 0 has sessions open: (False, True)"]),

    ("nothing-left", "nothing_left_behind", make_run(), []),
    ("memory-between-pushes", "nothing_left_behind", make_run(make_push(exported=2), make_push(2)),
     ["after push 1, 2 pieces of shared memory were not released"]),
    ("memory-of-a-lost-rank", "nothing_left_behind",
     make_run(failed_push(1, raised(), killed(), exported=2)), []),
    ("memory-in-a-deadlock", "nothing_left_behind",
     make_run(failed_push(1, LOST, LOST, halted=halt(), exported=2)), []),
    ("a-port-is-left", "nothing_left_behind", make_run(leftovers=("port 9 is still listened on",)),
     ["port 9 is still listened on"]),

    ("same-bytes", "bytes_counted_once", make_run(sent(1, 40), sent(2, 8, 40)), []),
    ("bytes-of-a-resend-twice", "bytes_counted_once", make_run(sent(1, 40), sent(2, 8, 48)),
     ["pushes of one model report different bytes, by push: {1: 40, 2: 48}"]),
    ("bytes-of-a-push-that-raised", "bytes_counted_once",
     make_run(sent(1, 40), failed_push(2, raised(result={"bytes_sent": [8]}))), []),

    ("closing-push-works", "clean_push", make_run(), []),
    ("no-closing-push-in-a-control", "clean_push", make_run(closing=None), []),
    ("closing-push-raises", "clean_push", make_run(closing=failed_push(2)),
     ["the closing push: expected resumed, found raised: it failed"]),
    ("closing-push-deadlocks", "clean_push",
     make_run(closing=failed_push(2, LOST, LOST, halted=halt())),
     ["the closing push: expected resumed, found deadlock: who waits"]),
]
# fmt: on


def _judge(invariant: str, run: RunSeen, **fields: Any) -> list[str]:
    scenario = make_scenario(**fields)
    return CHECKS[invariant](Evidence(scenario, run, WeightsOf(scenario, Oracle())))


@pytest.mark.parametrize(
    ("invariant", "run", "broken"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_invariants(invariant: str, run: RunSeen, broken: list[str]) -> None:
    """An invariant says each way in which a run breaks it, and nothing of a run that does not."""
    assert _judge(invariant, run) == broken


def test_different_causes() -> None:
    """Agreed causes that differ between ranks are no agreement."""
    (broken,) = _judge("ranks_agree", make_run(failed_push(1, AGREED, OTHERWISE)))
    assert broken.startswith("push 1: the ranks raised different causes: {(")


@pytest.mark.parametrize("draft", [True, False], ids=["with-draft", "without"])
@pytest.mark.parametrize("served", [0, 1], ids=["old", "new"])
def test_draft_weights(draft: bool, served: int) -> None:
    """Where a push carries a draft, an engine that kept the old draft weights is caught."""
    run = make_run(make_push(after=(serving(1, draft_fingerprint=weights(served, draft=True)),)))
    found = ["after push 1, engine 0 serves draft weights that are not those of push 1"]
    assert _judge("serving_consistent", run, draft=draft) == (found if draft and not served else [])


def test_every_invariant_has_both_kinds_of_case() -> None:
    """The language, the checks and the canaries know the same invariants."""
    assert list(CHECKS) == list(INVARIANTS)
    served = {"nothing_torn_served"}  # in test_serving
    assert {case[1] for case in CASES if case[3]} | served == set(CHECKS)
    assert {case[1] for case in CASES if not case[3]} | served == set(CHECKS)
