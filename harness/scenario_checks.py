"""What needs more than one field of a scenario to judge: ranges, places, counts, contradictions.

Each check takes the parts of a scenario that are valid in themselves and yields what is wrong
between them, so that one mistake hides no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from harness.fault_checks import check_faults
from harness.scenario import (
    INVARIANTS,
    MAX_REAL_ENGINES,
    MAX_REAL_WORKERS,
    MAX_SHARDS,
    NUM_EXPERTS,
    Engines,
    Trainer,
)
from harness.scenario_parts import Parts as Parts
from harness.scenario_parts import check_index, problem
from harness.wording import unknown
from harness.yaml_document import Place, Problem


def check(parts: Parts) -> Iterator[Problem]:
    """Yield everything that is wrong between the parts."""
    for one_check in _CHECKS:
        yield from one_check(parts)


def _check_layout(parts: Parts) -> Iterator[Problem]:
    trainer, engines = parts.trainer, parts.engines
    if trainer is not None:
        model_parallel = trainer.tensor_parallel * trainer.pipeline_parallel
        if trainer.ranks % model_parallel:
            yield problem(
                ("trainer", "ranks"),
                f"a multiple of tensor_parallel x pipeline_parallel = {model_parallel}",
                trainer.ranks,
                "Change one of the three.",
            )
        yield from _check_experts(trainer, engines)
        if MAX_SHARDS % trainer.tensor_parallel:
            yield _unsplittable(("trainer", "tensor_parallel"), trainer.tensor_parallel)
    if engines is not None and MAX_SHARDS % engines.workers:
        yield _unsplittable(("engines", "workers"), engines.workers)


def _check_experts(trainer: Trainer, engines: Engines | None) -> Iterator[Problem]:
    divisor = math.gcd(NUM_EXPERTS, max(trainer.data_parallel, 1))
    if divisor % trainer.expert_parallel:
        yield problem(
            ("trainer", "expert_parallel"),
            f"a divisor of {divisor}, since {NUM_EXPERTS} experts are spread over "
            f"{trainer.data_parallel} data parallel ranks",
            trainer.expert_parallel,
            "Change it, or the number of ranks.",
        )
    if engines is not None and engines.kind == "vllm" and trainer.expert_parallel > 1:
        yield problem(
            ("trainer", "expert_parallel"),
            "1, since the real engines' model has no experts",
            trainer.expert_parallel,
            "Use kind: fake.",
        )


def _check_senders(parts: Parts) -> Iterator[Problem]:
    """Several ranks that send, and what that needs."""
    trainer, engines = parts.trainer, parts.engines
    if trainer is None or trainer.senders == "one":
        return
    place = ("trainer", "senders")
    transport = {"slots": "ipc", "stages": "nccl"}[trainer.senders]
    if parts.transport not in (None, transport):
        yield problem(
            place, f"one, as the transport is {parts.transport}", trainer.senders,
            f"Use transport: {transport}, or one sender.",
        )  # fmt: skip
    if engines is not None and (engines.kind != "fake" or trainer.send_loop == "vllm"):
        yield problem(
            place, "one, as vLLM's own send loops have one sender", trainer.senders,
            "Use kind: fake and send_loop: ours.",
        )  # fmt: skip
    if trainer.senders == "slots" and engines is not None and trainer.ranks % engines.count:
        yield problem(
            ("trainer", "ranks"), f"a multiple of the {engines.count} engines, for equal slots",
            trainer.ranks, "Change one of the two.",
        )  # fmt: skip
    if trainer.senders == "stages" and (trainer.pipeline_parallel == 1 or parts.draft):
        yield problem(
            place, "pipeline_parallel of 2 or more, and no draft, for stages that send in turn",
            f"{trainer.pipeline_parallel}{' and a draft' if parts.draft else ''}",
            "Change one of them.",
        )  # fmt: skip


def _check_real(parts: Parts) -> Iterator[Problem]:
    """What a real engine on CPU cannot be asked for."""
    engines = parts.engines
    if engines is None or engines.kind != "vllm":
        return
    limits = (
        ("workers", engines.workers > MAX_REAL_WORKERS, f"1 to {MAX_REAL_WORKERS}"),
        ("count", engines.count > MAX_REAL_ENGINES, f"1 to {MAX_REAL_ENGINES}"),
        ("profile", engines.profile != "vllm-0.32", "vllm-0.32, the rules that it has"),
    )
    for key, is_wrong, expected in limits:
        if is_wrong:
            yield problem(
                ("engines", key),
                f"{expected}, since kind is vllm",
                getattr(engines, key),
                "Change it, or use kind: fake.",
            )
    if parts.draft:
        yield problem(
            ("draft",),
            "false, since the real engines serve a model without a draft",
            True,
            "Leave the key out, or use kind: fake.",
        )


def _unsplittable(place: Place, found: int) -> Problem:
    return problem(
        place,
        f"a number that divides {MAX_SHARDS}, the model's narrowest split dimension",
        found,
        "Use 1, 2, 4, 8 or 16.",
    )


def _check_between_pushes(parts: Parts) -> Iterator[Problem]:
    for number, restart in parts.restarts.items():
        place: Place = ("restarts", number)
        if restart.what == "engine" and restart.engine is None:
            message = "expected the key engine beside what: engine, found none. Say which."
            yield Problem((*place, "engine"), message)
        if restart.what == "trainer" and restart.engine is not None:
            message = "expected no engine beside what: trainer, found one. Remove it."
            yield Problem((*place, "engine"), message, at_key=True)
        if parts.engines is not None:
            count = parts.engines.count
            yield from check_index(restart.engine, (*place, "engine"), count, "engines.count")
        if parts.pushes is not None and restart.before_push > parts.pushes:
            yield problem(
                (*place, "before_push"),
                f"a push from 1 to {parts.pushes}",
                restart.before_push,
                "Lower it, or raise pushes.",
            )
    for number, staged in parts.before_connect.items():
        place = ("before_connect", number)
        if parts.engines is not None:
            count = parts.engines.count
            yield from check_index(staged.engine, (*place, "engine"), count, "engines.count")
        if staged.request == "start_draft" and parts.draft is False:
            yield problem(
                (*place, "request"), "a request without draft", "start_draft", "Set draft: true."
            )


def _check_expectations(parts: Parts) -> Iterator[Problem]:
    given, pushes = parts.num_expectations, parts.pushes
    if given is not None and pushes is not None and given not in (1, pushes):
        yield problem(
            ("expect",),
            f"one mapping, or a list of {pushes} (one for each push)",
            f"{given} entries",
            "Add or remove some, or change pushes.",
        )
    for place, expectation in parts.expect.items():
        if parts.engines is not None:
            count = parts.engines.count
            for key in ("version", "generation", "bytes"):
                value = getattr(expectation, key)
                if isinstance(value, tuple) and len(value) != count:
                    yield problem(
                        (*place, key),
                        f"one value, or a list of {count} (engines.count)",
                        value,
                        "List one for each engine.",
                    )
            named = expectation.names_engine
            yield from check_index(named, (*place, "names_engine"), count, "engines.count")
        for key in ("error", "names_engine"):
            if getattr(expectation, key) is not None and expectation.outcome in (
                "resumed",
                "degraded",
            ):
                yield Problem(
                    (*place, key),
                    f"expected no {key} beside outcome: resumed, found one. "
                    f"Remove it: a push that resumed raises nothing.",
                    at_key=True,
                )


def _check_invariants(parts: Parts) -> Iterator[Problem]:
    for name in parts.waive:
        if name not in INVARIANTS:
            message = unknown(name, INVARIANTS, what="an invariant of")
            yield Problem(("waive", name), message, at_key=True)
    for number, name in enumerate(parts.breaks):
        if name not in INVARIANTS:
            message = unknown(name, INVARIANTS, what="an invariant of")
            yield Problem(("breaks", number), message)
        elif name in parts.waive:
            message = f"expected {name} in waive or in breaks, found it in both. Remove one."
            yield Problem(("breaks", number), message)


_CHECKS: tuple[Callable[[Parts], Iterator[Problem]], ...] = (
    _check_layout,
    _check_senders,
    _check_real,
    check_faults,
    _check_between_pushes,
    _check_expectations,
    _check_invariants,
)
