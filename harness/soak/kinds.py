"""The kinds of run of the soak: which scenario, how many in a hundred, and how at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from harness.scenario import Scenario
from harness.scenario_file import load_file

FOLDER = Path(__file__).parent / "scenarios"
SLOW_RANK_ENTRY = "harness.soak.slow_rank:main"
STARVED_RANK_ENTRY = "harness.soak.slow_rank:starved"
LOADED_PERCENT = 25  # of each kind, beside busy processes


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """One kind of run.

    Attributes:
        name: as the table has it.
        file: its scenarios, in `FOLDER`; a run takes the next cell of the matrix.
        percent: of all runs.
        rank_entry: takes the place of a rank's entry point.
        closing: whether a run ends with one more push, which relaunches what was lost.
        at_a_time: how many runs of it go on at once; ``None`` for as many as there is room for.
    """

    name: str
    file: str
    percent: int
    rank_entry: str | None = None
    closing: bool = False
    at_a_time: int | None = None

    def scenarios(self) -> tuple[Scenario, ...]:
        """Return the cells of its file.

        Raises:
            ValueError: the file has errors.
        """
        loaded = load_file(FOLDER / self.file)
        if loaded.errors:
            raise ValueError("\n".join(map(str, loaded.errors)))
        return loaded.scenarios


# fmt: off
KINDS = (
    RunKind(name="succeeds at once",      file="at_once.yaml",     percent=28),
    RunKind(name="fails once, is resent", file="resend.yaml",      percent=25),
    RunKind(name="stalls for 0.1-1 s",    file="short_stall.yaml", percent=20),
    RunKind(name="a gather takes 3 s",    file="slow_gather.yaml", percent=5),
    RunKind(name="an engine is late",     file="late_engine.yaml", percent=6),
    RunKind(name="a rank at 1/10 CPU",    file="slow_rank.yaml",   percent=10,
            rank_entry=SLOW_RANK_ENTRY, at_a_time=1),  # they would share the tenth
    RunKind(name="a rank at 1/70 CPU",    file="slow_rank.yaml",   percent=2,
            rank_entry=STARVED_RANK_ENTRY, at_a_time=1),
    RunKind(name="a rank is lost",        file="lost_rank.yaml",   percent=4, closing=True),
)
# fmt: on


@dataclass(frozen=True)
class Plan:
    """The runs of one soak, in order: those on a machine at rest, then those on a loaded one."""

    at_rest: tuple[tuple[RunKind, Scenario], ...]
    loaded: tuple[tuple[RunKind, Scenario], ...]


def plan(num_runs: int, kinds: Sequence[RunKind] = KINDS) -> Plan:
    """Return which runs to make; each kind gets its share, and is spread over the whole.

    Args:
        num_runs: in all, at least 1.
    """
    num_loaded = num_runs * LOADED_PERCENT // 100
    cells = {kind.name: cycle(kind.scenarios()) for kind in kinds}

    def take(count: int) -> tuple[tuple[RunKind, Scenario], ...]:
        return tuple((kind, next(cells[kind.name])) for kind in _spread(count, kinds))

    return Plan(take(num_runs - num_loaded), take(num_loaded))


def _spread(count: int, kinds: Sequence[RunKind]) -> Iterator[RunKind]:
    """Yield ``count`` kinds, always that which is furthest behind its share."""
    made = dict.fromkeys(kinds, 0)
    for number in range(1, count + 1):
        kind = max(kinds, key=lambda each: number * each.percent / 100 - made[each])
        made[kind] += 1
        yield kind
