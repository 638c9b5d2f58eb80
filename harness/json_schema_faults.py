"""The part of the JSON Schema that is about faults: who can strike where, with which keys.

What a key may be follows from the kind and the point that stand beside it, so that an editor offers
the points of a kind, its options, and the selectors of a point, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.contracts import Json
from harness.fault_points import FAULT_POINTS, FaultPoint
from harness.fault_spec import FAULT_SPECS, FaultSpec
from harness.faults import FAULTS
from harness.json_schema_fields import Schema, field_schema
from harness.model_docs import summary

KEYS = "#/definitions/fault_keys/properties"
_EVERYWHERE = ("kind", "at", "push", "nth", "required")


def fault_definitions() -> dict[str, Schema]:
    """Return the definitions that the rest of the schema refers to.

    ``fault`` may still lack what a matrix gives it, ``whole_fault`` may not; ``fault_keys`` has
    what each key may be, and ``point`` every fault point.
    """
    return {
        "fault_keys": {"properties": _keys()},
        "point": _point_enum(FAULT_POINTS),
        "fault": _fault(),
        "whole_fault": _whole_fault(),
    }


def options_of(kind: str) -> list[str]:
    """Return the fields that a fault kind has beside those of every fault."""
    return [*FAULTS[kind].model_fields]


def points_of(kind: str) -> list[str]:
    """Return the fault points that a kind can strike."""
    return [point for point in FAULT_POINTS if FAULTS[kind].can_strike(point)]


def _keys() -> dict[str, Schema]:
    keys = {name: field_schema(FaultSpec, name) for name in FaultSpec.model_fields}
    kinds = {kind: _first_sentence(summary(FAULTS[kind])) for kind in FAULTS}
    keys["kind"] |= {"enum": [*kinds], "enumDescriptions": [*kinds.values()]}
    return keys


def _fault() -> Schema:
    options = dict.fromkeys(option for kind in FAULTS for option in options_of(kind))
    selectors = [key for key in FaultSpec.model_fields if key not in _EVERYWHERE]
    no_kind = {"not": {"type": "object", "required": ["kind"]}}
    return {
        "type": "object",
        "description": summary(FaultSpec),
        "properties": {key: {"$ref": f"{KEYS}/{key}"} for key in _EVERYWHERE},
        # What a rule below allows; as a pattern, since editors offer properties everywhere.
        "patternProperties": {f"^({'|'.join((*selectors, *options))})$": {}},
        "additionalProperties": False,
        "allOf": [
            *map(_kind_rule, FAULTS),
            _if(no_kind, {"at": {"$ref": "#/definitions/point"}}),
            *(rule for key in selectors for rule in _selector_rules(key)),
        ],
    }


def _kind_rule(kind: str) -> Schema:
    """Of one kind: where it can strike, its own options, and no others."""
    own = {option: field_schema(FAULTS[kind], option) for option in options_of(kind)}
    foreign = {option for other in FAULTS for option in options_of(other)} - set(own)
    allowed = {"at": _point_enum(points_of(kind)), **own, **dict.fromkeys(sorted(foreign), False)}
    return _if(_is("kind", [kind]), allowed)


def _selector_rules(key: str) -> list[Schema]:
    """Of one key: at which points it may stand. The point itself may be left to a matrix."""
    points = [name for name, point in FAULT_POINTS.items() if _takes(point, key)]
    others = [name for name in FAULT_POINTS if name not in points]
    may_stand = {"properties": {"at": {"enum": points}}}
    return [
        _if(may_stand, {key: {"$ref": f"{KEYS}/{key}"}}),
        _if(_is("at", others), {key: False}),
    ]


def _takes(point: FaultPoint, key: str) -> bool:
    if key in ("engine", "rank"):
        return (point.role == "rank") == (key == "rank")
    return key in point.narrowed_by


def _whole_fault() -> Schema:
    ranks = [name for name, point in FAULT_POINTS.items() if point.role == "rank"]
    others = [name for name in FAULT_POINTS if name not in ranks]
    needs = {
        kind: [k for k, f in model.model_fields.items() if f.is_required() and k in options]
        for kind, model in FAULT_SPECS.items()
        if (options := options_of(kind))
    }
    return {
        "allOf": [
            {"$ref": "#/definitions/fault"},
            {"required": ["kind", "at"]},
            {"if": _is("at", ranks), "then": {"required": ["rank"]}},
            {"if": _is("at", others), "then": {"required": ["engine"]}},
            *(
                {"if": _is("kind", [kind]), "then": {"required": required}}
                for kind, required in needs.items()
                if required
            ),
        ]
    }


def _point_enum(points: Iterable[str]) -> Schema:
    names = [*points]
    return {"enum": names, "enumDescriptions": [FAULT_POINTS[name].reached for name in names]}


def _is(key: str, values: list[str]) -> Schema:
    # Of an entry that is still empty nothing is known: an editor would offer what any value allows.
    return {"type": "object", "properties": {key: {"enum": values}}, "required": [key]}


def _if(condition: Schema, properties: Mapping[str, Json]) -> Schema:
    return {"if": condition, "then": {"properties": dict(properties)}}


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())
