"""Writes calls and their answers as the source of a check: steps, and what joins them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent, indent

from conformance.engine import contract
from conformance.engine.contract import Json, Step

SHORTHAND = {
    name: getattr(contract, name) for name in ("START", "FINISH", "START_REFUSED", "FINISH_REFUSED")
}
TEXTS = {
    name: getattr(contract, name)
    for name in (
        "ALREADY_ACTIVE",
        "BUSY",
        "DEAD",
        "NOT_CONFIGURED",
        "NOT_STARTED",
        "NO_DRAFT",
        "NO_MATCHING_START",
        "ON_META",
    )
}
_REFUSED = re.compile(
    r"Call to collective_rpc method failed: Worker failed with error '(.*)'(, please check .*)?\Z",
    re.DOTALL,
)
_NAME = re.compile(
    r"\b(?:[A-Z][A-Z_]{3,}|Step|expect|refused|update|checksums|complete|converse)\b"
)


@dataclass(frozen=True)
class Code:
    """Source of one call, or of what follows from it.

    Attributes:
        source: an expression for a step of `contract.converse`, or statements.
        is_step: which of the two it is.
    """

    source: str
    is_step: bool


def in_converse(step: str) -> Code:
    """Return the code of a request that can stand in a list of steps."""
    return Code(step, True)


def statements(source: str) -> Code:
    """Return the code of what must be called or asserted by itself."""
    return Code(dedent(source).strip("\n"), False)


def expect_call(call: str, status: int, says: str, told: str) -> Code:
    """Return the code of a call of the engine's own, and of the answer that it must get."""
    answer = ", ".join([str(status), *([text(says)] if says else [])])
    return statements(f"expect({call}, {answer}, told={literal(told)})")


def step_of(request: str, status: int, says: str, body: Json) -> str:
    """Return the source of a step: a name of the contract where it has one for it."""
    for name, known in SHORTHAND.items():
        if _is(known, request, status, says, body):
            return name
    if (match := _REFUSED.match(says)) and status == 500:
        arguments = [literal(request), text(match[1])]
        return f"refused({', '.join([*arguments, *([literal(body)] if body is not None else [])])})"
    arguments = [literal(request)]
    if status != 200 or says:
        arguments.append(str(status))
    if says:
        arguments.append(text(says))
    if body is not None:
        arguments.append(f"body={literal(body)}" if len(arguments) < 3 else literal(body))
    return f"Step({', '.join(arguments)})"


def _is(known: Step, request: str, status: int, says: str, body: Json) -> bool:
    same = (known.request, known.status, known.body) == (request, status, body)
    return same and bool(says) and known.says in says


def update_of(on: Sequence[bool], status: int, says: str) -> str:
    """Return the source of `contract.update`."""
    workers = "" if list(on) == [True] else f"on={list(on)}, "
    return f"update(engine, {workers}status={status}, says={text(says)})"


def text(says: str) -> str:
    """Return the source of an answer's text: a name of the contract where it has one for it."""
    for name, known in TEXTS.items():
        if known in says:
            return name
    return literal(says)


def literal(value: Json) -> str:
    """Return a literal in double quotes, where its content allows it."""
    if isinstance(value, str):
        return json.dumps(value) if '"' not in value and value.isascii() else repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    return repr(value)


def check(codes: Iterable[Code], *, name: str, docstring: str, arguments: str) -> str:
    """Return the source of a whole check: its imports, and a coroutine that takes a maker."""
    body = "\n".join(_joined(list(codes)))
    names = sorted({"EngineMaker", *_NAME.findall(body)} & set(vars(contract)))
    imports = "\n".join(f"    {each}," for each in names)
    needs_asyncio = "import asyncio\n\n" if "asyncio." in body else ""
    return (
        f"{needs_asyncio}from conformance.engine.contract import (\n{imports}\n)\n\n\n"
        f"async def {name}(make: EngineMaker) -> None:\n"
        f'    """{docstring}"""\n'
        f"    async with make({arguments}) as engine:\n"
        f"{indent(body, ' ' * 8)}\n"
    )


def _joined(codes: Sequence[Code]) -> Iterator[str]:
    for is_step, group in groupby(codes, key=lambda code: code.is_step):
        if is_step:
            steps = "\n".join(f"        {code.source}," for code in group)
            yield f"await converse(\n    engine,\n    [\n{steps}\n    ],\n)"
        else:
            yield from (code.source for code in group)
