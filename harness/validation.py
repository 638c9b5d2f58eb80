"""Turns the plain values of one cell into a scenario, or into every problem that they have."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from harness.contracts import Json
from harness.scenario import (
    FAULT_SPECS,
    Expectation,
    FaultSpec,
    Restart,
    Scenario,
    StagedRequest,
)
from harness.scenario_checks import Parts, check
from harness.scenario_values import STRICT, Section
from harness.wording import explain, show, unknown
from harness.yaml_document import Place, Problem

_ITEMS: Mapping[str, Callable[[Json], type[Section]]] = {
    "faults": lambda item: FAULT_SPECS[item["kind"]],
    "restarts": lambda item: Restart,
    "before_connect": lambda item: StagedRequest,
    "expect": lambda item: Expectation,
}
_FIELDS = Scenario.model_fields


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _known_keys(annotation: Any) -> Iterable[str]:
    return annotation.model_fields if _is_section(annotation) else ()


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    """Return what validates one field alone, so that a broken one hides no other."""
    annotated: Any = Annotated[field.annotation, field]
    return TypeAdapter(annotated, config=None if _is_section(field.annotation) else STRICT)


_ADAPTERS = {name: _adapter(field) for name, field in _FIELDS.items() if name not in _ITEMS}


def field_problems(name: str, value: Json) -> list[Problem]:
    """Return what is wrong with the value of one field that is no list of mappings."""
    return _field(name, value)[1]


def _field(name: str, value: Json) -> tuple[dict[str, Any], list[Problem]]:
    """Return the field's value by its name, if it is valid, and what is wrong with it."""
    try:
        return {name: _ADAPTERS[name].validate_python(value)}, []
    except ValidationError as error:
        return {}, _translated(error, (name,), _known_keys(_FIELDS[name].annotation))


def validate(data: Mapping[str, Json]) -> tuple[Scenario | None, list[Problem]]:
    """Return the scenario that the values are, or what is wrong with them."""
    problems = [
        Problem((key,), unknown(key, (*_FIELDS, "matrix"), what="a key of"), at_key=True)
        for key in data
        if key not in _FIELDS
    ]
    values: dict[str, Any] = {
        name: field.get_default(call_default_factory=True)
        for name, field in _FIELDS.items()
        if name not in data and not field.is_required()
    }
    for name in ("proves", "transport", "expect"):
        if name not in data:
            problems.append(Problem((name,), f"expected the key {name}, found none. Add it."))
    for name in _ADAPTERS:
        if name in data:
            value, found = _field(name, data[name])
            values |= value
            problems += found
    items: dict[str, dict[Place, Any]] = {}
    for name in _ITEMS:
        items[name], item_problems = _validate_items(name, data)
        problems += item_problems
    num_expectations = _count(data.get("expect"))
    if "pushes" not in data and num_expectations:
        values["pushes"] = num_expectations
    problems += check(_parts(values, items, num_expectations))
    if problems:
        return None, problems
    lists = {name: tuple(found.values()) for name, found in items.items()}
    return Scenario.model_construct(None, **(values | lists)).decided(), []


def _validate_items(name: str, data: Mapping[str, Json]) -> tuple[dict[Place, Any], list[Problem]]:
    """Return the valid entries of one list by their place, and what is wrong with the others."""
    entries = data.get(name, [])
    if name == "expect" and isinstance(entries, dict):
        placed: list[tuple[Place, Json]] = [(("expect",), entries)]
    elif isinstance(entries, list) and (entries or name != "expect"):
        placed = [((name, number), entry) for number, entry in enumerate(entries)]
    else:
        expected = "a mapping, or a list of them" if name == "expect" else "a list of mappings"
        message = f"expected {expected}, found {show(entries)}. Write - before each entry."
        return {}, [Problem((name,), message)] if name in data else []
    valid: dict[Place, Any] = {}
    problems = []
    for place, entry in placed:
        if not isinstance(entry, dict):
            message = f"expected a mapping, found {show(entry)}. Write key: value pairs."
            problems.append(Problem(place, message))
        elif name == "faults" and entry.get("kind") not in [*FAULT_SPECS]:  # it may be any value
            found = entry.get("kind")
            message = unknown(found, FAULT_SPECS) if "kind" in entry else _NO_KIND
            problems.append(Problem((*place, "kind"), message))
        else:
            model = _ITEMS[name](entry)
            try:
                valid[place] = model.model_validate(entry)
            except ValidationError as error:
                problems += _translated(error, place, model.model_fields)
                broken = {each["loc"][0] for each in error.errors() if each["loc"]}
                rest = _without(broken, entry) if name == "faults" else entry
                with suppress(ValidationError):
                    valid[place] = model.model_validate(rest)
    return valid, problems


def _without(broken: Container[str | int], fault: Mapping[str, Json]) -> dict[str, Json]:
    """Return a fault without its broken fields, so that what else is wrong with it is found."""
    rest = {key: value for key, value in fault.items() if key not in broken}
    return rest | {key: "all" for key in ("engine", "rank") if key in broken and key in fault}


_NO_KIND = f"expected the key kind, found none. Add one of {', '.join(FAULT_SPECS)}."


def _translated(error: ValidationError, place: Place, known_keys: Iterable[str]) -> list[Problem]:
    """Return pydantic's errors as problems below ``place``."""
    return [
        Problem(
            (*place, *each["loc"]),
            explain(_with_key(each, place), known_keys),
            at_key=each["type"] == "extra_forbidden",
        )
        for each in error.errors(include_url=False)
        if each["type"] != "default_factory_not_called"  # follows from an error told already
    ]


def _with_key(error: ErrorDetails, place: Place) -> ErrorDetails:
    return error if error["loc"] else {**error, "loc": place}


def _count(expect: Json) -> int | None:
    if isinstance(expect, dict):
        return 1
    return len(expect) if isinstance(expect, list) and expect else None


def _parts(
    values: Mapping[str, Any],
    items: Mapping[str, Mapping[Place, Any]],
    num_expectations: int | None,
) -> Parts:
    numbered = {
        name: {int(place[-1]): item for place, item in found.items()}
        for name, found in items.items()
        if name != "expect"
    }
    faults: dict[int, FaultSpec] = numbered["faults"]
    return Parts(
        trainer=values.get("trainer"),
        engines=values.get("engines"),
        transport=values.get("transport"),
        packed=values.get("packed"),
        draft=values.get("draft"),
        pushes=values.get("pushes"),
        faults=faults,
        restarts=numbered["restarts"],
        before_connect=numbered["before_connect"],
        expect=items["expect"],
        num_expectations=num_expectations,
        waive=values.get("waive") or {},
        breaks=values.get("breaks") or (),
    )
