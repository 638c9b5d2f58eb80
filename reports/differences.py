"""A line wherever a scenario ends differently on fake and on real engines: there must be none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from harness.contracts import ScenarioResult
from reports import phrases
from reports.table import safe_text


def compare(
    pairs: Sequence[tuple[str, str]], results: Mapping[str, ScenarioResult], console: Console
) -> bool:
    """Print a line for each difference, and how many scenarios were compared.

    Args:
        pairs: names of the same scenario on fake and on real engines.
        results: by name.
        console: where to print.

    Returns:
        Whether all ended alike.
    """
    differing = 0
    for fake, real in pairs:
        lines = list(differences(results[fake], results[real]))
        differing += bool(lines)
        for line in lines:
            console.print(Text("differs ", "bold red").append_text(safe_text(line, console)))
    told = f"fake and real engines: {len(pairs) - differing} of {len(pairs)} scenarios ended alike"
    console.print(Text(told, "bold red" if differing else "green"))
    return not differing


def differences(fake: ScenarioResult, real: ScenarioResult) -> Iterable[str]:
    """Yield a sentence for each thing that a scenario ended with differently.

    Weights are not compared where a real engine, while it is paused, does not show them.
    """
    compared = (
        ("verdict", fake.verdict.value, real.verdict.value),
        ("outcomes", phrases.outcomes(fake), phrases.outcomes(real)),
        ("attempts", phrases.attempts(fake), phrases.attempts(real)),
    )
    for what, on_fake, on_real in compared:
        if on_fake != on_real:
            yield f"{fake.name}: {what}: fake {on_fake}, real {on_real}"
    for one, other in zip(fake.engines, real.engines, strict=False):
        known = "unknown" not in (one.weights, other.weights)
        ends = [
            (each.version, each.generation, each.weights if known else "") for each in (one, other)
        ]
        if ends[0] != ends[1]:
            words = [", ".join(filter(None, map(str, end))) for end in ends]
            yield f"{fake.name}: engine {one.index}: fake {words[0]}; real {words[1]}"
