"""``python -m harness.bench``: measures, prints the ratios, and writes them as JSON.

Everything is measured in turn with its reference, in one run, and given as a median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.bench import cost, loading, naming
from harness.conductor import Conductor
from harness.contracts import Parts
from harness.launcher import Launcher
from harness.observation import RunSeen
from harness.parts import default_parts
from harness.scenario import FAULT_SPECS, Expectation, Scenario
from harness.watch import Watch

BARE_TARGET = "conformance.known_bad.no_version_check:build"
DEADLOCK_TARGET = "conformance.known_bad.agree_after_send:build"
RANKS = (2, 4, 8, 16, 32, 64)
PUSHES = 15
WATCHED_PUSHES = 5  # of the scenario that shows what watching costs


class Bench:
    """The measurements, each with its own scenario."""

    def __init__(
        self, launcher: Launcher, parts: Parts, out_dir: Path, repeat: int, pairs: int
    ) -> None:
        self._launcher = launcher
        self._parts = parts
        self._out_dir = out_dir
        self._repeat = repeat
        self._pairs = pairs

    async def run(self) -> dict[str, Any]:
        """Measure everything; seconds unless a key says otherwise."""
        await self._conduct(_scenario("ipc"))  # a first run, not counted
        reference, ours = [], {"ipc": list[float](), "nccl": list[float]()}
        for _ in range(self._repeat):
            reference.append(await _reference("run"))
            for transport, seconds in ours.items():
                run = await self._conduct(_scenario(transport, fault="engine.update"))
                assert run.pushes[0].report()["attempts"] == 2, "the fault did not strike"
                seconds.append(run.total_seconds)
        hang = [await self._deadlock() for _ in range(self._repeat)]
        return {
            "reference_spawn_s": statistics.median(reference),
            "reference_hang_s": await _reference("hang"),
            "scenario_s": {name: statistics.median(times) for name, times in ours.items()},
            "times_faster": {
                name: statistics.median(reference) / statistics.median(times)
                for name, times in ours.items()
            },
            "deadlock_named_s": statistics.median(hang),
            "deadlock_named_max_s": max(hang),
            "push_ms": await self._overhead(),
            "growth_s": {ranks: await self._growth(ranks) for ranks in RANKS},
            "naming_s": await naming.measure(self._conduct, self._repeat),
            "monitor_cpu": await self._monitoring(),
            "loading_s": loading.measure(self._repeat),
        }

    async def _deadlock(self) -> float:
        """Return the seconds from the last progress to the report of a deadlock."""
        run = await self._conduct(_scenario("nccl", fault="engine.start", target=DEADLOCK_TARGET))
        halted = run.pushes[0].halted
        assert halted is not None, "expected the control to deadlock"
        assert halted.kind == "deadlock", halted.sentence
        return halted.waited_s

    async def _overhead(self) -> dict[str, float]:
        """Return the milliseconds of a push that succeeds, with the module and without it."""
        found = {}
        for name, target in (("resync", None), ("bare", BARE_TARGET)):
            run = await self._conduct(_scenario("ipc", pushes=PUSHES, target=target))
            found[name] = 1e3 * statistics.median(_push_seconds(run)[1:])
        found["difference"] = found["resync"] - found["bare"]
        return found

    async def _growth(self, ranks: int) -> float:
        scenario = _scenario("nccl", fault="engine.update", ranks=ranks)
        return (await self._conduct(scenario)).total_seconds

    async def _monitoring(self) -> dict[str, float]:
        """Return the CPU seconds of a scenario that passes, watched and not, and the journal's."""
        scenario = _scenario("ipc", pushes=WATCHED_PUSHES)

        async def conduct(monitored: bool) -> RunSeen:
            return await self._conduct(scenario, monitored=monitored)

        events = (await conduct(True)).events
        found = await cost.monitoring(conduct, self._launcher.zygote_pid, self._pairs)
        journal_s = cost.journal(events, self._out_dir / "bench" / "again.jsonl")
        return {**found, "journal_s": journal_s, "num_events": len(events)}

    async def _conduct(self, scenario: Scenario, *, monitored: bool = True) -> RunSeen:
        parts = self._parts
        if not monitored:
            parts = replace(parts, rank_entry=cost.UNRECORDED_RANK)
        conductor = Conductor(
            self._launcher,
            parts,
            scenario,
            out_dir=self._out_dir / "bench",
            closing=False,
            watch=Watch if monitored else cost.Unwatched,
        )
        return await conductor.run()


def _scenario(
    transport: str,
    *,
    fault: str | None = None,
    target: str | None = None,
    ranks: int = 4,
    pushes: int = 1,
) -> Scenario:
    """Return the scenario that is measured: two engines, and one failure that hits both."""
    scenario = Scenario.model_validate(
        {
            "proves": "A push that failed once is sent again.",
            "trainer": {"ranks": ranks, "tensor_parallel": min(ranks, 4)},
            "engines": {"count": 2},
            "transport": transport,
            "target": target,
            "pushes": pushes,
            "expect": (Expectation(outcome="resumed"),),
        }
    )
    if fault is not None:
        reject = FAULT_SPECS["reject"](kind="reject", at=fault, engine="all")
        scenario = scenario.model_copy(update={"faults": (reject,)})
    return scenario.named("bench", Path("bench"))


def _push_seconds(run: RunSeen) -> list[float]:
    """Return the seconds of each push on rank 0."""
    commands = [e for e in run.events if e["event"] == "command" and e["who"] == "rank:0"]
    times = [e["t"] for e in commands if e["command"] == "push"]
    return [end - begin for begin, end in zip(times[::2], times[1::2], strict=True)]


async def _reference(which: str) -> float:
    """Return the seconds of one repetition of the reference, in a process of its own."""
    command = [sys.executable, "-m", "harness.bench.reference", which]
    done = await asyncio.to_thread(
        subprocess.run, command, stdout=subprocess.PIPE, check=True, text=True
    )
    return float(done.stdout)


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table("measured", "value", "reference", "ratio", title="bench (medians)")
    spawn_s = found["reference_spawn_s"]
    for transport, seconds in found["scenario_s"].items():
        ratio = found["times_faster"][transport]
        name = f"a scenario, {transport}: 4 ranks, 2 engines, one resend"
        table.add_row(name, f"{seconds:.3f} s", f"{spawn_s:.2f} s spawned", f"{ratio:.1f} x")
    named_s, hang_s = found["deadlock_named_s"], found["reference_hang_s"]
    most_s = found["deadlock_named_max_s"]
    table.add_row(
        f"a deadlock named after the last progress (at most {most_s:.2f} s)",
        f"{named_s:.3f} s", f"{hang_s:.1f} s time-out", f"{hang_s / named_s:.0f} x",
    )  # fmt: skip
    push = found["push_ms"]
    table.add_row(
        "a push that succeeds, with the module and without",
        f"{push['resync']:.1f} ms", f"{push['bare']:.1f} ms bare",
        f"{push['difference'] / 10:+.2f} % of 1 s",
    )  # fmt: skip
    first = found["growth_s"][RANKS[0]]
    for ranks, seconds in found["growth_s"].items():
        ratio = f"{seconds / first:.1f} x for {ranks // RANKS[0]} x ranks"
        table.add_row(
            f"the scenario with {ranks} ranks", f"{seconds:.3f} s", f"{first:.3f} s", ratio
        )
    for row in (
        *naming.rows(found["naming_s"]),
        *cost.rows(found["monitor_cpu"]),
        *loading.rows(found["loading_s"]),
    ):
        table.add_row(*map(escape, row))  # a scenario's cell is no markup
    console.print(table)


async def _main(out_dir: Path, repeat: int, pairs: int) -> None:
    parts = default_parts()
    preload = [*parts.preload, cost.UNRECORDED_RANK.partition(":")[0]]
    async with Launcher(preload) as launcher:
        found = await Bench(launcher, parts, out_dir, repeat, pairs).run()
    _show(found, Console(highlight=False))
    path = out_dir / "bench.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written: {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m harness.bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of bench.json")
    parser.add_argument("--repeat", type=int, default=9, help="repetitions (default: %(default)s)")
    parser.add_argument(
        "--pairs", type=int, default=60, help="runs with and without the monitor (default: 60)"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(_main(options.out, options.repeat, options.pairs))


if __name__ == "__main__":
    main()
