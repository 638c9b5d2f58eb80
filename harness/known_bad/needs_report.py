"""What was found of the scenarios' needs: lines and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from harness.contracts import Json, Verdict
from harness.known_bad.needs import Need, Needs, unneeded


def line(need: Need, needs: Needs) -> str:
    """Return what was found of one scenario."""
    if need.catch is not None:
        after = f", after {len(need.tried) - 1} others" if len(need.tried) > 1 else ""
        said = " ".join(need.catch.sentence.split())
        return f"needed    {need.scenario}: catches {need.module}{after}\n  {said}"
    if need.good is not Verdict.PASS:
        return f"NO USE    {need.scenario}: {need.good} with the good module too"
    kept = needs.why_kept(need.scenario)
    if kept is not None:
        return f"kept      {need.scenario}: {kept}"
    return f"UNNEEDED  {need.scenario}: catches none of {len(need.tried)} modules"


def counts(needs: Needs, found: Sequence[Need]) -> str:
    """Return the closing line."""
    idle = [need.scenario for need in unneeded(needs, found)]
    caught = sum(need.catch is not None for need in found)
    kept = len(found) - caught - len(idle)
    text = f"{len(found)} scenarios, {caught} catch a module, {kept} kept, {len(idle)} unneeded"
    return f"{text}: {', '.join(idle)}" if idle else text


def as_json(needs: Needs, found: Sequence[Need]) -> Json:
    """Return what was found as JSON types."""
    return [
        {
            "scenario": need.scenario,
            "catches": need.module,
            "verdict": None if need.catch is None else str(need.catch.verdict),
            "sentence": None if need.catch is None else need.catch.sentence,
            "tried": list(need.tried),
            "good_module": str(need.good),
            "kept": needs.why_kept(need.scenario),
        }
        for need in found
    ]


def write(folder: Path, needs: Needs, found: Sequence[Need]) -> Path:
    """Write ``needed.json``; return its path."""
    path = folder / "needed.json"
    path.write_text(json.dumps(as_json(needs, found), indent=1) + "\n", encoding="utf-8")
    return path
