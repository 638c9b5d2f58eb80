"""The questions of ``resync-chaos new``, in the order in which they are asked.

Each knows from the answers before it whether it is asked, what is possible and what is likely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from harness.authoring.advice import CONNECT, UPDATE, Advice, Struck, advise
from harness.authoring.question import (
    Answers,
    Question,
    Refused,
    nth,
    number,
    one_of,
    source,
    text,
    version,
    whole,
)
from harness.authoring.words import meanings
from harness.contracts import Json
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario_values import Generations, Outcome, Transport
from harness.wording import near, show

NOT_CHECKED = "any"


TRANSPORTS = meanings(Transport)
GENERATIONS = meanings(Generations)
OUTCOMES = meanings(Outcome)


def _always(answers: Answers) -> bool:
    return True


def _where(typed: str, answers: Answers) -> str:
    possible = list(_points(answers))
    if typed not in FAULT_POINTS:
        raise Refused(
            f"expected a fault point that {answers['what']} can strike ({', '.join(possible)}), "
            f"found {show(typed)}. {near(typed, possible)}"
        )
    if typed not in possible:
        raise Refused(
            f"expected a point that {answers['what']} can strike ({', '.join(possible)}), found "
            f"{typed}. {near(typed, possible)}"
        )
    return typed


def _options(typed: str, answers: Answers) -> dict[str, Json]:
    """Return a kind's own fields, typed as ``seconds: 2`` or ``{status: 503, text: busy}``."""
    document = typed if typed.startswith("{") else f"{{{typed}}}"
    kind = FAULTS[answers["what"]]
    fields = kind.model_fields
    known = ", ".join(fields) or "nothing: it has no options"
    try:
        found = yaml.safe_load(document if ":" in document else document.replace("=", ": "))
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        raise Refused(
            f"expected options of {answers['what']} ({known}) as key: value, found {show(typed)}. "
            "Write for example seconds: 2."
        )
    try:
        kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(
            f"expected options of {answers['what']} ({known}), found {show(found)}. "
            f"{where}: {first['msg']}."
        ) from error
    return found


# ---- what is possible and likely ----


def _kinds(answers: Answers) -> Mapping[str, str]:
    return {
        kind: (FAULTS[kind].__doc__ or "").strip().partition("\n")[0].rstrip(".") for kind in FAULTS
    }


def _points(answers: Answers) -> Mapping[str, str]:
    kind = FAULTS[answers["what"]]
    return {name: each.reached for name, each in FAULT_POINTS.items() if kind.can_strike(name)}


def role(answers: Answers) -> str:
    """Return ``engine``, ``worker`` or ``rank``: where the fault point is."""
    return FAULT_POINTS[answers["where"]].role


def _narrows(answers: Answers, key: str) -> bool:
    return key in FAULT_POINTS[answers["where"]].narrowed_by


def _of_sender(answers: Answers) -> bool:
    return FAULT_POINTS[answers["where"]].by == "sender"


def _rank(typed: str, answers: Answers) -> Any:
    if _of_sender(answers) and typed != "0":
        raise Refused(
            f"expected 0, the sender, which alone reaches {answers['where']}, found {show(typed)}. "
            "Write 0."
        )
    return whole(typed, least=0, most=255, words=("all",))


def _transports(answers: Answers) -> Mapping[str, str]:
    """Return the transports that reach the fault point."""
    only = FAULT_POINTS[answers["where"]].transport if "where" in answers else None
    return {name: told for name, told in TRANSPORTS.items() if only in (None, name)}


def _only_transport(answers: Answers) -> str | None:
    transports = list(_transports(answers))
    return transports[0] if len(transports) == 1 else None


def _needs_options(answers: Answers) -> bool:
    fields = FAULTS[answers["what"]].model_fields
    return any(field.is_required() for field in fields.values())


def _example_options(answers: Answers) -> str | None:
    return {"slow": "seconds: 0.5"}.get(answers["what"])


def _num_engines(answers: Answers) -> str:
    engine = answers.get("engine")
    if not isinstance(engine, int):
        return "2"
    # On NCCL an update that some of several engines refuse leaves the others receiving.
    alone = answers["transport"] == "nccl" and answers["where"] in UPDATE
    return str(engine + 1 if alone else max(engine + 1, 2))


def _num_ranks(answers: Answers) -> str:
    rank = answers.get("rank")
    return str(max(4, rank + 1)) if isinstance(rank, int) else "4"


def _num_workers(answers: Answers) -> str:
    worker = answers.get("worker")
    return str(worker + 1) if isinstance(worker, int) and worker else "1"


def struck(answers: Answers) -> Struck:
    """Return the fault as the advice sees it."""
    index = answers["rank"] if role(answers) == "rank" else answers["engine"]
    return Struck(
        kind=answers["what"],
        at=answers["where"],
        index=index,
        push=answers["push"],
        nth=answers["nth"],
        transport=answers["transport"],
        num_engines=answers["num_engines"],
        options=answers.get("with") or {},
    )


def advice(answers: Answers) -> Advice:
    """Return what a module that keeps the contract would do."""
    return advise(struck(answers))


def agreed(answers: Answers) -> bool:
    """Whether the user expects the outcome that the contract asks for."""
    return bool(answers["outcome"] == advice(answers).expect["outcome"])


def _advised(key: str) -> Callable[[Answers], str | None]:
    def default(answers: Answers) -> str | None:
        advised = advice(answers).expect
        if agreed(answers):
            found = advised.get(key, NOT_CHECKED)
            return NOT_CHECKED if isinstance(found, list) else str(found)
        if key == "version" and answers["outcome"] in ("resumed", "raised"):
            push = max(answers["push"], 1)
            return str(push) if answers["outcome"] == "resumed" else str(push - 1 or "default")
        plain = {"resumed": "running", "raised": "paused"}
        return plain.get(answers["outcome"], NOT_CHECKED) if key == "generation" else NOT_CHECKED

    return default


def _pushes(typed: str, answers: Answers) -> int:
    return int(whole(typed, least=max(answers["push"], 1), most=99))


# fmt: off
QUESTIONS = (
    Question(key="what", asks="What went wrong?", choices=_kinds, needed=_always,
             check=one_of(lambda answers: FAULTS), metavar="KIND",
             help="what went wrong: the kind of fault, such as reject"),
    Question(key="where", asks="Where?", choices=_points, check=_where, needed=_always,
             metavar="POINT", help="the fault point that it struck, such as engine.finish"),
    Question(key="engine", asks="Which engine? A number from 0, or all", needed=_always,
             default=lambda answers: "0", applies=lambda answers: role(answers) != "rank",
             check=number(0, 63, "all"), metavar="N", help="the engine struck, from 0, or all"),
    Question(key="worker", asks="Which of its workers? A number from 0, or all",
             default=lambda answers: "all", applies=lambda answers: role(answers) == "worker",
             check=number(0, 15, "all"), metavar="N", help="the worker struck (default: all)"),
    Question(key="rank", asks="Which trainer rank? 0 is the sender; or all", needed=_always,
             default=lambda answers: "0" if _of_sender(answers) else "1",
             applies=lambda answers: role(answers) == "rank", check=_rank, metavar="N",
             help="the trainer rank struck, or all"),
    Question(key="with", asks="How exactly?", default=_example_options, needed=_needs_options,
             applies=lambda answers: bool(FAULTS[answers["what"]].model_fields),
             only_by_flag=lambda answers: not _needs_options(answers),
             check=_options, metavar="OPTIONS",
             help="options of the kind, as 'seconds: 2' or '{status: 503, text: busy}'"),
    Question(key="push", asks="In which push of the run? 0 is the connect before the first",
             default=lambda answers: "0" if answers["where"] in CONNECT else "1",
             check=number(0, 99), metavar="N",
             help="the push that is struck, from 1; 0 is the connect before the first"),
    Question(key="nth", asks="How often in that push? 1 is once, 1,2 twice; or always",
             default=lambda answers: "1", check=nth, metavar="N",
             help="which visits of the push: 1, a list such as 1,2, or always (default: 1)"),
    Question(key="session", asks="Of which session?", only_by_flag=_always, metavar="MODEL",
             applies=lambda answers: _narrows(answers, "session"),
             check=one_of(lambda answers: ("target", "draft")),
             help="only the target's or the draft's session; draft adds a draft model"),
    Question(key="tensor", asks="Of which tensors?", only_by_flag=_always, metavar="GLOB",
             applies=lambda answers: _narrows(answers, "tensor"), check=text,
             help="only tensors whose name matches"),
    Question(key="step", asks="Of which step?", only_by_flag=_always, metavar="GLOB",
             applies=lambda answers: _narrows(answers, "name"), check=text,
             help="only steps of the target whose name matches, at rank.step"),
    Question(key="transport", asks="How do weights travel?", choices=_transports,
             needed=lambda answers: len(_transports(answers)) > 1, default=_only_transport,
             check=one_of(_transports), metavar="HOW", help="ipc or nccl"),
    Question(key="num_ranks", asks="How many trainer ranks?", default=_num_ranks,
             check=number(1, 256), metavar="N", help="trainer ranks (default: 4)"),
    Question(key="num_engines", asks="How many engines?", default=_num_engines,
             check=number(1, 64), metavar="N", help="engines (default: 2, or what is struck)"),
    Question(key="num_workers", asks="How many workers has each engine?", default=_num_workers,
             check=number(1, 16), metavar="N", help="workers of each engine (default: 1)",
             applies=lambda answers: role(answers) == "worker"),
    Question(key="outcome", asks="How should the push end?", needed=_always,
             choices=lambda answers: OUTCOMES,
             default=lambda answers: str(advice(answers).expect["outcome"]),
             check=one_of(lambda answers: OUTCOMES), metavar="WORD",
             help=f"how the push should end: {', '.join(OUTCOMES)}"),
    Question(key="attempts", asks="After how many sends of the model? Or any",
             default=_advised("attempts"), check=number(0, 99, NOT_CHECKED), metavar="N",
             help="complete sends within the push, or any"),
    Question(key="version", asks="Which version should the engines show then? Or any",
             default=_advised("version"), check=version, metavar="LABEL",
             help="version that every engine shows after the push, or any"),
    Question(key="generation", asks="And generation there? running, paused, dead, stuck, or any",
             default=_advised("generation"), metavar="STATE",
             check=one_of(lambda answers: (*GENERATIONS, NOT_CHECKED)),
             help=f"generation on every engine after it: {', '.join(GENERATIONS)}, or any"),
    Question(key="pushes", asks="How many pushes in all?",
             default=lambda answers: str(max(answers["push"], 1)), check=_pushes, metavar="N",
             help="pushes in all (default: up to the one that is struck)"),
    Question(key="source", asks="Where is it reported? An address, or nothing",
             default=lambda answers: "", check=source, metavar="URL",
             help="address of the incident's report"),
    Question(key="proves", asks="What does it prove, in a sentence?",
             default=lambda answers: proposal(answers), check=text, metavar="TEXT",
             help="the sentence that a run shows to be true (default: made from the answers)"),
)
# fmt: on


def proposal(answers: Answers) -> str:
    """Return the sentence that the answers amount to."""
    ends = {
        "resumed": "the push still goes through",
        "raised": "every rank raises",
        "degraded": "the push goes on without it",
        "deadlock": "the ranks are left waiting for ever",
        "mixed": "the ranks do not end alike",
    }
    index = answers["rank"] if role(answers) == "rank" else answers["engine"]
    name = "rank" if role(answers) == "rank" else "engine"
    whom = f"every {name}" if index == "all" else f"{name} {index}"
    often = "every time" if answers["nth"] == "always" else "once"
    if isinstance(answers["nth"], tuple) and len(answers["nth"]) > 1:
        often = f"{len(answers['nth'])} times"
    does = FAULTS[answers["what"]].model_validate(answers.get("with") or {}).label()
    place = f"push {answers['push']}" if answers["push"] else "the connect"
    version = answers["version"]
    shown = "" if version == NOT_CHECKED else f", and the engines show version {version}"
    end = ends[answers["outcome"]]
    return f"Where {whom} {does} {often} at {answers['where']} of {place}, {end}{shown}."
