"""What a scenario asked for and what its engines ended as, in words for a page or a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.contracts import CheckResult, ScenarioResult
from harness.reporting.result_file import Details
from reports import phrases
from reports.phrases import visible
from reports.story import Story

# What checks want whose sentence does not say it, by the first part of their names.
_WANTED = {
    "fault": "it strikes",
    "later_visits": "it strikes each time",
    "control": "succeeds, and differs",
}
_COMPARED = re.compile(
    r"(?:(?P<what>[\w ]+): )?expected (?P<wanted>.*?), found (?P<found>.*)", re.S
)
NO_FAULT = "no fault"


def fault_points(details: Details) -> list[str]:
    """Return the fault points of a scenario, each once; what it does instead where it has none."""
    points = [str(fault.get("at", "")) for fault in details.scenario.get("faults", ())]
    points += ["restart" for _ in details.scenario.get("restarts", ())]
    points += ["before connect" for _ in details.scenario.get("before_connect", ())]
    return list(dict.fromkeys(filter(None, points))) or [NO_FAULT]


def transport(details: Details) -> str:
    """Return ``ipc`` or ``nccl``; empty where it is not known."""
    return str(details.scenario.get("transport", ""))


def setting(details: Details) -> list[tuple[str, str]]:
    """Return what the scenario set up, as pairs of a word and its value."""
    asked = details.scenario
    if not asked:
        return []
    trainer, engines = asked.get("trainer", {}), asked.get("engines", {})
    parallel = [
        f"{short} {trainer[key]}"
        for short, key in (
            ("TP", "tensor_parallel"),
            ("PP", "pipeline_parallel"),
            ("EP", "expert_parallel"),
        )
        if trainer.get(key, 1) != 1
    ]
    limits = asked.get("timeouts", {})
    pairs = [
        (
            "trainer",
            f"{trainer.get('ranks')} ranks" + (f" ({', '.join(parallel)})" if parallel else ""),
        ),
        ("engines", f"{engines.get('count')} x {engines.get('workers')} workers, {_kind(engines)}"),
        ("transport", transport(details) + (", packed" if asked.get("packed") else ", unpacked")),
        (
            "pushes",
            str(asked.get("pushes")) + (", with a draft model" if asked.get("draft") else ""),
        ),
        ("target", str(asked.get("target") or "")),
        ("limits", ", ".join(f"{k.removesuffix('_s')} {v:g} s" for k, v in limits.items())),
        ("seed", str(asked.get("seed"))),
        ("source", str(asked.get("source") or "")),
    ]
    pairs += [("fault", fault_in_words(fault)) for fault in asked.get("faults", ())]
    pairs += [("restart", _options(restart)) for restart in asked.get("restarts", ())]
    pairs += [("before connect", _options(each)) for each in asked.get("before_connect", ())]
    return [(key, visible(value)) for key, value in pairs if value]


def fault_in_words(fault: Mapping[str, Any]) -> str:
    """Return ``reject at engine.update: engine 1, push 2, nth 1``."""
    said = {k: v for k, v in fault.items() if k not in ("kind", "at", "required")}
    where = f"{fault.get('kind')} at {fault.get('at')}"
    return f"{where}: {_options(said)}" if said else where


def _kind(engines: Mapping[str, Any]) -> str:
    return "real vLLM" if engines.get("kind") == "vllm" else f"fake {engines.get('profile', '')}"


def _options(given: Mapping[str, Any]) -> str:
    words = []
    for key, value in given.items():
        said = " and ".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"{key} {said}")
    return ", ".join(words)


def check_rows(result: ScenarioResult) -> list[dict[str, Any]]:
    """Return a row per check: its name, what was expected, what was found; failed ones first."""
    rows = [_row(check) for check in result.checks]
    return sorted(rows, key=lambda row: {"failed": 0, "waived": 1, "met": 2}[row["state"]])


def _row(check: CheckResult) -> dict[str, Any]:
    met = _COMPARED.fullmatch(check.detail)
    wanted, found = ("holds", check.detail) if met is None else (met["wanted"], met["found"])
    wanted = _WANTED.get(check.name.partition(".")[0], wanted)
    state = "met" if check.ok else "failed" if check.waived is None else "waived"
    return {
        "name": visible(check.name),
        "state": state,
        "expected": visible(wanted),
        "found": visible(found),
        "waived": visible(check.waived or ""),
    }


def engine_cards(result: ScenarioResult, details: Details, story: Story) -> list[dict[str, Any]]:
    """Return, for each engine, its state after the scenario's last push, and what it served.

    What is not known, such as the checksum of an engine that died, is empty.
    """
    pushes = [push for push in details.pushes if not push.get("closing")]
    last = pushes[-1] if pushes else {}
    after = {engine["index"]: engine for engine in last.get("after", ())}
    told = last.get("ranks", {}).get("0", {}).get("result", {}).get("engines", ())
    # A target reports what it likes; ours reports this.
    known = [each for each in told if isinstance(each, Mapping)] if isinstance(told, list) else []
    reported = {str(engine.get("index")): engine.get("bytes", "") for engine in known}
    cards = []
    for final in result.engines:
        seen = after.get(final.index, {})
        cards.append(
            {
                "index": final.index,
                "version": "" if final.version is None else visible(final.version),
                "generation": final.generation,
                "weights": visible(final.weights),
                "checksum": visible(str(seen.get("fingerprint") or "")),
                "trainer": _trainers(last),
                "sessions": ["open" if each else "closed" for each in seen.get("sessions", ())],
                "bytes": visible(str(reported.get(str(final.index), ""))),
                "stuck": bool(seen.get("stuck")),
                "served": list(_served(f"engine:{final.index}", details, story)),
            }
        )
    return cards


def _trainers(push: Mapping[str, Any]) -> dict[str, str]:
    """Return what the trainer counts as published, and the checksum of what the push sends."""
    if not push:
        return {}
    return {
        "version": visible(str(push.get("version") or "none")),
        "checksum": str(push.get("expected_weights", "")),
        "push": str(push.get("number", "")),
        "outcome": str(push.get("outcome", "")),
    }


def _served(lane: str, details: Details, story: Story) -> Iterator[list[Any]]:
    """Yield push, version, weights, tokens for each while that an engine served alike."""
    counts: dict[tuple[str, str, str], int] = {}
    closing = {push["number"] for push in details.pushes if push.get("closing")}
    for served in story.served:
        if served.lane == lane:
            weights = details.weights.get(served.fingerprint, served.fingerprint)
            push = f"{served.push} (closing)" if served.push in closing else str(served.push)
            key = (push, visible(served.version), visible(weights))
            counts[key] = counts.get(key, 0) + served.num_tokens
    for (push, version, weights), tokens in counts.items():
        yield [push, version, weights, tokens]


def one_line(result: ScenarioResult, details: Details) -> str:
    """Return each engine's end in one line: version, generation, weights and open sessions."""
    pushes = [push for push in details.pushes if not push.get("closing")]
    seen = {e["index"]: e for e in (pushes[-1].get("after", ()) if pushes else ())}
    words = []
    for final in result.engines:
        text = f"engine {final.index}: {phrases.engine(final)}, weights {visible(final.weights)}"
        sessions: Sequence[bool] = seen.get(final.index, {}).get("sessions", ())
        if any(sessions):
            text += f", session open in {sum(sessions)} of {len(sessions)} workers"
        words.append(text)
    return "; ".join(words) or "no engine was seen"
