"""Runs as the judges see them, made up: by default, of one push that went well everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.observation import EngineSeen, Halt, PushSeen, RankEnding, RunSeen
from harness.scenario import FAULT_SPECS, Expectation, Scenario

NUM_RANKS = 2


class Oracle:
    """Weights named by the push that sends them; checksums are fingerprints already."""

    def expected(
        self, *, seed: int, step: int, workers: int, draft: bool, model: str = "fake"
    ) -> str:
        return f"{'draft' if draft else 'target'} {step} of seed {seed} on {workers}"

    def fingerprint(self, checksums: Mapping[str, str]) -> str:
        return "".join(checksums.values())


def weights(step: int, *, draft: bool = False) -> str:
    """Return the fingerprint of push ``step`` in a scenario of this module."""
    return Oracle().expected(seed=1, step=step, workers=1, draft=draft)


def make_scenario(
    *faults: Mapping[str, Any], expect: Mapping[str, Any] | None = None, **fields: Any
) -> Scenario:
    """Return a scenario that expects one push of two ranks to resume."""
    given = {
        "proves": "It holds.",
        "transport": "ipc",
        "pushes": 1,
        "expect": (Expectation.model_validate(expect or {"outcome": "resumed"}),),
        **fields,
    }
    scenario = Scenario.model_validate(given)
    specs = tuple(FAULT_SPECS[fault["kind"]].model_validate(fault) for fault in faults)
    return scenario.model_copy(update={"faults": specs})


def returned(push: int = 1, **fields: Any) -> RankEnding:
    """Return the ending of a rank whose push went well."""
    result = {"attempts": 1, "retries": 0, "engines": [{"bytes": "committed"}]}
    return replace(RankEnding(ending="returned", version=str(push), result=result), **fields)


def raised(error: str = "it failed", **fields: Any) -> RankEnding:
    """Return the ending of a rank whose first push raised."""
    return replace(RankEnding(ending="raised", error=error, version="default"), **fields)


def died(**fields: Any) -> RankEnding:
    """Return the ending of a rank that died by itself."""
    error = "ended with status 3: its last words"
    return replace(RankEnding(ending="died", exit_status=3, error=error), **fields)


def killed() -> RankEnding:
    """Return the ending of a rank that a fault killed."""
    return RankEnding(ending="died", exit_status=-9, struck=True)


def serving(step: int = 1, **fields: Any) -> EngineSeen:
    """Return an engine that serves the weights of push ``step``."""
    seen = EngineSeen(
        index=0,
        process=100,
        alive=True,
        label=str(step) if step else "default",
        paused=False,
        sessions=(False,),
        fingerprint=weights(step),
        draft_fingerprint=weights(step, draft=True),
    )
    return replace(seen, **fields)


def paused(step: int = 0, **fields: Any) -> EngineSeen:
    """Return a paused engine that holds the weights of push ``step``."""
    return serving(step, **{"paused": True, **fields})


def dead(**fields: Any) -> EngineSeen:
    """Return an engine that does not answer."""
    return replace(EngineSeen(index=0, process=100, alive=False), **fields)


def halt(kind: Any = "deadlock") -> Halt:
    """Return why a push was cut short."""
    return Halt(kind=kind, sentence="who waits", waited_s=0.2, evidence={"rank:0": "its stack"})


def make_push(number: int = 1, *ranks: RankEnding, **fields: Any) -> PushSeen:
    """Return push ``number`` as it ended on ``ranks``; without any, it went well on all."""
    endings = ranks or (returned(number),) * NUM_RANKS
    push = PushSeen(
        number=number,
        ranks=dict(enumerate(endings)),
        before=(serving(number - 1),),
        after=(serving(number),),
    )
    return replace(push, **fields)


def failed_push(number: int = 1, *ranks: RankEnding, **fields: Any) -> PushSeen:
    """Return push ``number`` raised on every rank, generation paused."""
    endings = ranks or (raised(),) * NUM_RANKS
    return make_push(number, *endings, **{"after": (paused(number - 1),), **fields})


def degraded(
    number: int, *others: EngineSeen, quarantined: Sequence[int] = (1,), **fields: Any
) -> PushSeen:
    """Return push ``number`` that went on without engine 1: engine 0 runs, beside ``others``."""
    engines = [{"index": 0}, *({"index": index, "quarantined": True} for index in quarantined)]
    ending = returned(number)
    ending = replace(ending, result={**ending.result, "degraded": True, "engines": engines})
    given = {"after": (serving(number), *others), **fields}
    return make_push(number, *(ending,) * NUM_RANKS, **given)


def make_run(*pushes: PushSeen, **fields: Any) -> RunSeen:
    """Return a run of ``pushes`` and a closing push that went well; without any, of one."""
    made = pushes or (make_push(),)
    run = RunSeen(
        pushes=made,
        closing=make_push(len(made) + 1),
        fired={},
        events=(),
        leftovers=(),
        seconds=0.2,
        total_seconds=0.3,
    )
    return replace(run, **fields)


def event(name: str, who: str = "engine:0", **fields: Any) -> dict[str, Any]:
    """Return a journal event."""
    return {"t": 0.0, "who": who, "event": name, **fields}


def pushing(number: int) -> dict[str, Any]:
    """Return the event that begins push ``number``."""
    return event("push", "harness", number=number, phase="begin")


def token(fingerprint: str, version: str = "default", who: str = "engine:0") -> dict[str, Any]:
    """Return the event of one token that was served."""
    return event("token", who, token=7, fingerprint=fingerprint, version=version)
