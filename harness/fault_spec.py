"""One fault as a scenario says it: what strikes, where and when, with the options of its kind."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import create_model

from harness.contracts import Json
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario_values import RANDOM, Index, Nth, Section, Selected, Session, Text


class FaultSpec(Section):
    """What strikes, where and when. The options of its kind stand beside these keys.

    Attributes:
        kind: what happens.
        at: the fault point where it happens; each kind has those that it can strike.
        engine: at points `engine.*` and `worker.*`, whose visits count: a number from 0, or a word.
        rank: at points `rank.*`, whose visits count: a number from 0, or a word.
        worker: at points `worker.*`, which of the engine's workers; each of them by default.
        push: the push in which it strikes. 0 is the connect before the first push; the connect of a
            trainer that was restarted before push n belongs to push n.
        nth: which visits it strikes: a count from 1, a list of counts, or always. Only visits that
            match all selectors count, for each push and worker afresh.
        session: strike only visits that belong to this model's session.
        tensor: strike only visits with this tensor: its name, a glob pattern, or random for one
            that is drawn from the scenario's seed.
        name: at `rank.step`, strike only this step of the target: its name, or a glob pattern.
        required: a scenario with a required fault that never struck is `invalid`.
    """

    kind: str
    at: str
    engine: Selected | None = None
    rank: Selected | None = None
    worker: Selected | None = None
    push: Index = 1
    nth: Nth = (1,)
    session: Session | None = None
    tensor: Text | None = None
    name: Text | None = None
    required: bool = True

    @property
    def role(self) -> str:
        """Who must be named to address it: ``engine`` (also for its workers) or ``rank``."""
        return "rank" if FAULT_POINTS[self.at].role == "rank" else "engine"

    @property
    def index(self) -> int | Literal["all"] | None:
        """The engine or the rank that it strikes."""
        index = self.rank if self.role == "rank" else self.engine
        assert index != RANDOM, "drawn when the file was loaded"
        return index

    def selectors(self) -> dict[str, Json]:
        """What narrows the point, as `harness.contracts.Injector` knows it."""
        given: dict[str, Json] = {
            key: getattr(self, key) for key in ("worker", "session", "tensor", "name")
        }
        return {key: value for key, value in given.items() if value not in (None, "all")}

    @property
    def delay_s(self) -> float:
        """The longest that one visit it strikes is delayed before it goes on, in seconds."""
        options = self.options()
        return float(options.get("seconds", 0.0)) + float(options.get("jitter", 0.0))

    def options(self) -> dict[str, Json]:
        """The fields of the kind itself."""
        return self.model_dump(exclude=set(FaultSpec.model_fields))


def _spec_of(kind: str) -> type[FaultSpec]:
    """Return `FaultSpec` with the fields of one kind beside its own."""
    own: dict[str, Any] = {
        name: (field.annotation, field) for name, field in FAULTS[kind].model_fields.items()
    }
    return create_model(f"FaultSpec_{kind}", __base__=FaultSpec, **own)


FAULT_SPECS = {kind: _spec_of(kind) for kind in FAULTS}
