"""Writes the scenario file that the answers of ``new`` amount to: short, commented, checked."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from harness.authoring.advice import MADE_GOOD, version_after
from harness.authoring.question import Answers
from harness.authoring.questions import NOT_CHECKED, advice, agreed, role
from harness.authoring.words import story
from harness.scenario import FAULT_SPECS

WIDTH = 100


def file_text(answers: Answers) -> str:
    """Return the text of the file."""
    return "\n".join(_lines(answers)) + "\n"


def _lines(answers: Answers) -> Iterator[str]:
    extra = dict(advice(answers).extra) if agreed(answers) else _plain_extra(answers)
    yield f"proves: {_scalar(answers['proves'])}"
    if answers.get("source"):
        yield f"source: {answers['source']}"
    yield ""
    yield "# Who takes part. The processes are fakes, so every number is cheap."
    yield f"trainer: {_flow(_trainer(answers))}"
    yield f"engines: {_flow(_engines(answers))}"
    yield f"transport: {answers['transport']}"
    if answers.get("session") == "draft":
        yield "draft: true  # the fault is in the draft model's session"
    if "timeouts" in extra:
        yield f"timeouts: {_flow(extra['timeouts'])}  # seconds; this scenario waits them out"
    yield ""
    fault = _fault(answers)
    told = story(FAULT_SPECS[answers["what"]].model_validate(fault))
    yield from _comment(told)
    yield "faults:"
    yield f"  - {_flow(fault)}"
    yield ""
    if "tolerates" in extra:
        yield "# Why a run without the fault may look the same; otherwise it must not."
        yield f"tolerates: {_scalar(extra['tolerates'])}"
    if "waive" in extra:
        yield "# What need not hold here, and why."
        yield "waive:"
        yield from (f"  {name}: {_scalar(reason)}" for name, reason in extra["waive"].items())
    yield from _expectations(answers)


def _trainer(answers: Answers) -> dict[str, Any]:
    """Return the ranks; where one is struck, all are in its collectives."""
    ranks = answers["num_ranks"]
    split = {"tensor_parallel": 2} if ranks == 4 and role(answers) != "rank" else {}
    return {"ranks": ranks} | split


def _engines(answers: Answers) -> dict[str, Any]:
    workers = answers.get("num_workers", 1)
    return {"count": answers["num_engines"]} | ({"workers": workers} if workers > 1 else {})


def _fault(answers: Answers) -> dict[str, Any]:
    fault = {"kind": answers["what"], "at": answers["where"]}
    if role(answers) == "rank":
        fault["rank"] = answers["rank"]
    else:
        fault["engine"] = answers["engine"]
    if isinstance(answers.get("worker"), int):
        fault["worker"] = answers["worker"]
    if answers["push"] != 1:
        fault["push"] = answers["push"]
    if answers["nth"] != (1,):
        nth = answers["nth"]
        fault["nth"] = nth if isinstance(nth, str) else nth[0] if len(nth) == 1 else list(nth)
    for key, name in (("session", "session"), ("tensor", "tensor"), ("step", "name")):
        if answers.get(key):
            fault[name] = answers[key]
    return fault | (answers.get("with") or {})


def _plain_extra(answers: Answers) -> dict[str, Any]:
    """Return what follows from the fault, where the user expects another end than the contract."""
    extra = {k: v for k, v in advice(answers).extra.items() if k == "timeouts"}
    if answers["outcome"] == "resumed" and answers["attempts"] in (1, NOT_CHECKED):
        extra["tolerates"] = MADE_GOOD
    return extra


def _expectations(answers: Answers) -> Iterator[str]:
    struck_push = max(answers["push"], 1)
    pushes = answers["pushes"]
    if pushes == 1:
        yield "# What must be true after the push. What is not said is not checked."
        yield f"expect: {_flow(_expected(answers))}"
        return
    yield "# What must be true after each push. What is not said is not checked."
    yield "expect:"
    for push in range(1, pushes + 1):
        if push == struck_push:
            yield "  # The push that is struck:"
            yield f"  - {_flow(_expected(answers))}"
        elif push < struck_push:
            calm = {"outcome": "resumed", "attempts": 1, "version": version_after(push)}
            yield f"  - {_flow(calm)}"
        else:
            yield f"  - {_flow(_later(answers, push - struck_push))}"


def _expected(answers: Answers) -> dict[str, Any]:
    """Return the expectation of the push that is struck: the answers, and what follows."""
    expected: dict[str, Any] = {"outcome": answers["outcome"]}
    advised = advice(answers).expect if agreed(answers) else {}
    for key in ("connect_attempts", "attempts", "retries", "version", "generation", "bytes"):
        answer = answers.get(key, advised.get(key, NOT_CHECKED))
        if answer == NOT_CHECKED and isinstance(advised.get(key), list):
            answer = advised[key]  # one for each engine, which no answer can say
        if answer != NOT_CHECKED:
            expected[key] = answer
    if "names_engine" in advised:
        expected["names_engine"] = advised["names_engine"]
    return expected


def _later(answers: Answers, number: int) -> dict[str, Any]:
    """Return the expectation of the push that comes so many after the one that is struck."""
    struck_push = max(answers["push"], 1)
    expected: dict[str, Any] = {"outcome": "resumed"}
    if agreed(answers):
        published = struck_push if advice(answers).publishes else struck_push - 1
        expected["version"] = version_after(published + number)
    return expected | {"generation": "running"}


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def _flow(mapping: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{key}: {_value(value)}' for key, value in mapping.items())}}}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _flow(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    if isinstance(value, str):
        return _scalar(value, in_flow=True)
    return json.dumps(value)


def _scalar(text: str, *, in_flow: bool = False) -> str:
    """Return text as YAML has it: plain where that means the same, else in double quotes."""
    document = f"[{text}]" if in_flow else f"key: {text}"
    try:
        loaded = yaml.safe_load(document)
    except yaml.YAMLError:
        loaded = None
    same = loaded in ([text], {"key": text})
    return text if same else json.dumps(text, ensure_ascii=False)
