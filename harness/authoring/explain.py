"""``resync-chaos explain FILE``: a scenario's story in words. It starts nothing."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.authoring import words
from harness.scenario import INVARIANTS, Scenario
from harness.scenario_values import Senders
from harness.targets import DEFAULT

WIDTH = 100
LABEL = 10  # columns of the words that begin a paragraph


def explain(scenarios: Sequence[Scenario]) -> int:
    """Print the story of each file's first chosen scenario, and what its other cells change."""
    by_file: dict[Path, list[Scenario]] = {}
    for scenario in scenarios:
        by_file.setdefault(scenario.path, []).append(scenario)
    stories = ("\n".join(_lines(cells)) for cells in by_file.values())
    print("\n\n".join(stories))
    return 0


def _lines(cells: Sequence[Scenario]) -> Iterator[str]:
    scenario = cells[0]
    yield scenario.name
    yield from textwrap.wrap(scenario.proves, WIDTH, initial_indent="  ", subsequent_indent="  ")
    if scenario.source is not None:
        yield f"  {scenario.source}"
    yield ""
    yield from _who(scenario)
    for push in range(1, scenario.num_pushes + 1):
        yield from _push(scenario, push)
    yield from _afterwards(scenario)
    yield from _cells(cells)
    yield ""
    chosen = ["-k", scenario.name] if len(cells) > 1 or "[" in scenario.name else []
    yield from _paragraph(
        "run it", shlex.join(["resync-chaos", "run", str(scenario.path), *chosen])
    )


def _paragraph(label: str, text: str) -> Iterator[str]:
    """Yield one paragraph, wrapped; only its first line has the label."""
    indent = " " * (LABEL + 2)
    first = f"  {label:<{LABEL}}"
    if label == "run it":  # to be copied
        yield f"{first}{text}"
        return
    yield from textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False
    )


def _who(scenario: Scenario) -> Iterator[str]:
    trainer, engines = scenario.trainer, scenario.engines
    layout = f"tensor parallel {trainer.tensor_parallel}"
    if trainer.pipeline_parallel > 1:
        layout += f", pipeline parallel {trainer.pipeline_parallel}"
    if trainer.expert_parallel > 1:
        layout += f", expert parallel {trainer.expert_parallel}"
    if trainer.data_parallel > 1:
        layout += f", data parallel {trainer.data_parallel}"
    loop = "" if trainer.send_loop == "auto" else f", send loop {trainer.send_loop}"
    senders = words.meanings(Senders)[trainer.senders]
    gather = "; the others gather each tensor with it" if trainer.senders == "one" else ""
    told = f"{_count(trainer.ranks, 'rank')} ({layout}{loop}): {senders}"
    yield from _paragraph("trainer", told + (gather if trainer.ranks > 1 else ""))
    kind = "real vLLM" if engines.kind == "vllm" else "fake"
    rules = f"under the session rules {engines.profile}"
    yield from _paragraph(
        "engines",
        f"{engines.count} {kind}, of {_count(engines.workers, 'worker')} each, {rules}",
    )
    data = {"ipc": "IPC handles (shared GPUs)", "nccl": "NCCL broadcasts (separate GPUs)"}
    packed = "packed into chunks" if scenario.packed else "tensor by tensor"
    draft = "; a draft model travels in the same push" if scenario.draft else ""
    yield from _paragraph("weights", f"by {data[scenario.transport]}, {packed}{draft}")
    limits = scenario.timeouts
    yield from _paragraph(
        "time-outs",
        f"request {limits.request_s:g} s, init {limits.init_s:g} s, trainer's process groups "
        f"{limits.process_group_s:g} s, rendezvous {limits.rendezvous_s:g} s",
    )
    if scenario.deadline_s is not None:
        yield from _paragraph("deadline", f"{scenario.deadline_s:g} s for each connect and push")
    if scenario.seed != 1:
        yield from _paragraph("seed", str(scenario.seed))
    target = scenario.target or f"that of --target (by default {DEFAULT})"
    options = ", ".join(f"{key}: {value}" for key, value in scenario.target_options.items())
    yield from _paragraph("target", f"{target}{f', with {options}' if options else ''}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _push(scenario: Scenario, push: int) -> Iterator[str]:
    """Yield what is done to one push and what must be true after it."""
    yield ""
    done = []
    if push == 1:
        done += [f"{words.sentence(each)}." for each in words.staged(scenario.before_connect)]
    done += [
        words.sentence(words.restart(each)) + "."
        for each in scenario.restarts
        if each.before_push == push
    ]
    struck = [fault for fault in scenario.faults if fault.push == push]
    if push == 1:
        struck = [fault for fault in scenario.faults if fault.push == 0] + struck
    senders = words.senders_of(scenario.trainer, scenario.engines.count)
    done += [words.story(fault, senders) for fault in struck]
    label = f"push {push}"
    for text in done or ["Nothing is done to it."]:
        yield from _paragraph(label, text)
        label = ""
    expected = scenario.expectation(push)
    label = "  then"
    for text in [
        words.of_ranks(expected),
        *words.of_engines(expected, scenario.engines.count),
    ]:
        yield from _paragraph(label, f"{words.sentence(text)}.")
        label = ""


def _afterwards(scenario: Scenario) -> Iterator[str]:
    yield ""
    own = scenario.waive.keys() | set(scenario.breaks)
    always = [text for name, text in INVARIANTS.items() if name not in own]
    if always:
        yield from _paragraph("always", f"{words.sentence('; '.join(always))}.")
    for name, reason in scenario.waive.items():
        yield from _paragraph("waived", f"{name} ({INVARIANTS[name]}): {reason}")
    for name in scenario.breaks:
        yield from _paragraph("must break", f"{name}: it must not be that {INVARIANTS[name]}")
    for where, reason in scenario.only_as_written.items():
        yield from _paragraph("stays", f"not moved by --engines {where}: {reason}")
    if not (scenario.faults or scenario.restarts or scenario.before_connect):
        text = "None: nothing is done to this run, so it is its own."
    else:
        text = "The same run with nothing done to it must succeed"
        if scenario.tolerates is not None:
            text += f". It may look the same, since {scenario.tolerates}."
        elif scenario.breaks:
            text += "."
        else:
            text += ", and must not meet what is expected above: else this scenario proves nothing."
    yield from _paragraph("control", text)


def _cells(cells: Sequence[Scenario]) -> Iterator[str]:
    """Yield the cells of the matrix, each with what happens in it."""
    if len(cells) == 1:
        return
    yield ""
    yield from _paragraph("cells", f"{len(cells)}, of which the first is told above:")
    for cell in cells:
        name = cell.name.partition("[")[2].removesuffix("]")
        told = "; ".join(words.happenings(cell)) or "nothing is done to it"
        yield from textwrap.wrap(
            f"{name}: {cell.transport}, {told}",
            WIDTH,
            initial_indent=" " * (LABEL + 2),
            subsequent_indent=" " * (LABEL + 6),
            break_long_words=False,
            break_on_hyphens=False,
        )
