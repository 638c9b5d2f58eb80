"""The verdict on one scenario, from its run and the run of its control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.contracts import CheckResult, EngineFinal, ScenarioResult, Verdict, WeightOracle
from harness.fault_points import FAULT_POINTS
from harness.journal import CORRUPT
from harness.observation import PushSeen, RunSeen
from harness.scenario import Scenario
from harness.verdicts.expectations import generation, judge_expectations
from harness.verdicts.invariants import CHECKS, Evidence
from harness.verdicts.reasons import with_classes, with_reasons
from harness.verdicts.serving import WeightsOf

LATER_VISITS = "later_visits"  # name of the check that a fault which struck did so each time


def judge(
    scenario: Scenario,
    run: RunSeen,
    *,
    control: RunSeen | None,
    oracle: WeightOracle,
    journal: Path,
) -> ScenarioResult:
    """Return the verdict on a run.

    Args:
        control: the run of ``scenario.control()``; ``None`` where the scenario is its own.
    """
    weights = WeightsOf(scenario, oracle)
    try:
        checks = [*judge_expectations(scenario, run), *_judge_invariants(scenario, run, weights)]
        checks += [*_journal_checks(run), *_fault_checks(scenario, run)]
        if control is not None:
            checks += _control_checks(scenario, control, oracle, checks)
    except Exception as error:  # a checker that crashes proves nothing
        checks = [CheckResult(name="checker", ok=False, detail=f"a checker crashed: {error!r}")]
    verdict, sentence = _verdict(scenario, run, [*with_classes(checks, scenario, run, control)])
    return ScenarioResult(
        name=scenario.name,
        path=str(scenario.path),
        proves=scenario.proves,
        verdict=verdict,
        sentence=sentence,
        outcomes=tuple(push.outcome for push in run.pushes),
        attempts=tuple(_attempts(push) for push in run.pushes),
        engines=_finals(run.pushes[-1], weights),
        checks=tuple(with_reasons(checks, scenario, run, control)),
        seconds=run.seconds,
        total_seconds=run.total_seconds,
        journal=journal,
        evidence=_evidence(run),
    )


def crashed(scenario: Scenario, error: str, *, journal: Path) -> ScenarioResult:
    """Return the verdict on a scenario that the harness could not run: it proved nothing."""
    return ScenarioResult(
        name=scenario.name,
        path=str(scenario.path),
        proves=scenario.proves,
        verdict=Verdict.INVALID,
        sentence=error,
        outcomes=(),
        attempts=(),
        engines=(),
        checks=(CheckResult(name="harness", ok=False, detail=error),),
        seconds=0.0,
        total_seconds=0.0,
        journal=journal,
    )


def _judge_invariants(scenario: Scenario, run: RunSeen, weights: WeightsOf) -> list[CheckResult]:
    """Judge every invariant. One that the scenario says must break is turned round."""
    evidence = Evidence(scenario, run, weights)
    checks = []
    for name, check in CHECKS.items():
        broken = check(evidence)
        found = "; ".join(broken) or "holds"
        if name in scenario.breaks:
            ok, detail = bool(broken), f"expected to be broken, found: {found}"
        else:
            ok, detail = not broken, found
        waived = scenario.waive.get(name)
        checks.append(CheckResult(name=f"invariant.{name}", ok=ok, detail=detail, waived=waived))
    return checks


def _journal_checks(run: RunSeen) -> list[CheckResult]:
    """A journal with holes proves nothing: what is not in it may have happened."""
    corrupt = [event for event in run.events if event["event"] == CORRUPT]
    if not corrupt:
        return []
    first = corrupt[0]
    detail = f"the journal has {len(corrupt)} corrupt lines, the first at byte {first['offset']}: "
    return [CheckResult(name="journal.intact", ok=False, detail=detail + str(first["reason"]))]


def _fault_checks(scenario: Scenario, run: RunSeen) -> list[CheckResult]:
    """Every required fault must have struck, each visit that it names, everywhere it names.

    One that struck, and has visits left that never came, is judged as `LATER_VISITS`.
    """
    checks = []
    every_worker = list(range(scenario.engines.workers))
    for number, fault in enumerate(scenario.faults):
        if not fault.required:
            continue
        everyone = range(scenario.trainer.ranks if fault.role == "rank" else scenario.engines.count)
        indexes = everyone if fault.index == "all" else [fault.index]
        fired = run.fired.get(number, {})
        visits = (1,) if fault.nth == "always" else fault.nth
        struck = {f"{fault.role}:{index}": f"{fault.role} {index}" for index in indexes}
        if FAULT_POINTS[fault.at].role == "worker":
            workers = [fault.worker] if isinstance(fault.worker, int) else every_worker
            struck = {
                f"{who}/worker:{worker}": f"{words}, worker {worker}"
                for who, words in struck.items()
                for worker in workers
            }
        where = f"fault {number} ({fault.kind} at {fault.at})"
        times = {who: len(set(visits) & set(fired.get(who, ()))) for who in struck}
        missed = [words for who, words in struck.items() if not times[who]]
        detail = f"{where} struck" if not missed else f"{where} never struck {', '.join(missed)}"
        checks.append(CheckResult(name=f"fault.{number}", ok=not missed, detail=detail))
        if not missed and min(times.values()) < len(visits):
            counted = (f"{words} {times[who]} of {len(visits)} times"
                       for who, words in struck.items())  # fmt: skip
            detail = f"{where} struck {', '.join(counted)}"
            checks.append(CheckResult(name=f"{LATER_VISITS}.{number}", ok=False, detail=detail))
    return checks


def _control_checks(
    scenario: Scenario, control: RunSeen, oracle: WeightOracle, own: Sequence[CheckResult]
) -> list[CheckResult]:
    """The control must succeed, and must not meet what the scenario expects of its fault."""
    calm = scenario.control()
    judged = judge_expectations(calm, control)
    judged += _judge_invariants(calm, control, WeightsOf(calm, oracle))
    failed = [check.detail for check in judged if not check.ok]
    checks = [
        CheckResult(
            name="control.succeeds",
            ok=not failed,
            detail=f"without faults: {'; '.join(failed) or 'succeeds'}",
        )
    ]
    if not failed and scenario.tolerates is None and not scenario.breaks:
        met = all(check.ok for check in judge_expectations(scenario, control))
        detail = "the run without faults does not meet the expectation"
        if met:
            detail = (
                "the run without faults meets the expectation as well, so the scenario proves "
                "nothing; expect something that only the fault causes, or say what it `tolerates`"
            )
        checks.append(CheckResult(name="control.differs", ok=not met, detail=detail))
    return checks


def _verdict(
    scenario: Scenario, run: RunSeen, checks: Sequence[CheckResult]
) -> tuple[Verdict, str]:
    failed = [check for check in checks if not check.ok and check.waived is None]
    if not failed:
        return Verdict.PASS, scenario.proves
    by_name = {check.name.partition(".")[0]: check for check in reversed(failed)}
    if "checker" in by_name:
        return Verdict.INVALID, by_name["checker"].detail
    for push in _every_push(run):
        halted, closing = push.halted, push is run.closing
        wanted = "resumed" if closing else scenario.expectation(push.number).outcome
        if halted is not None and halted.kind != wanted:
            name = "the closing push" if closing else f"push {push.number}"
            return Verdict.HANG, f"{name}: {halted.kind}: {halted.sentence}"
    control = by_name.get("control")
    if control is not None and control.name == "control.succeeds":
        return Verdict.FAIL, control.detail  # then nothing else that it did means anything
    for proves_nothing in ("journal", "fault", "control"):
        if proves_nothing in by_name:
            return Verdict.INVALID, by_name[proves_nothing].detail
    # A target that gives up after the first strike never comes to the next, and has failed by that;
    # one that did all that is expected was not shown what the scenario is about.
    because = [check for check in failed if not check.name.startswith(f"{LATER_VISITS}.")]
    if not because:
        return Verdict.INVALID, failed[0].detail
    return Verdict.FAIL, because[0].detail


def _attempts(push: PushSeen) -> int:
    return int(push.report().get("attempts", 0)) if not push.connect_failed else 0


def _finals(push: PushSeen, weights: WeightsOf) -> tuple[EngineFinal, ...]:
    return tuple(
        EngineFinal(
            index=engine.index,
            version=engine.label,
            generation=generation(engine),
            weights=weights.name(engine.fingerprint) if engine.alive else "unknown",
        )
        for engine in push.after
    )


def _evidence(run: RunSeen) -> Mapping[str, str]:
    """Of the first push that had to be halted: who waits for what, and every stack."""
    for push in _every_push(run):
        if push.halted is not None:
            return push.halted.evidence
    return {}


def _every_push(run: RunSeen) -> list[PushSeen]:
    return [*run.pushes, *([] if run.closing is None else [run.closing])]
