"""The part of the JSON Schema that is about ``matrix``: which places it may name, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.json_schema_fields import Schema

_ENTRIES = {"faults": "#/definitions/fault"}  # lists whose entries stand in the definitions
_FAULT_KEYS = "#/definitions/fault_keys/properties"
_LISTS = ("faults", "restarts", "before_connect", "expect")
_DESCRIPTION = (
    "A family of scenarios: dotted places of the file, each with the list of values that it takes. "
    "There is one cell for each combination, named after its values."
)
_EXCLUDE = "Combinations to leave out: mappings of places of the matrix to one of their values."
_ANY: Schema = {"type": "array", "minItems": 1}


def matrix_schema(properties: Mapping[str, Schema], fault_keys: Mapping[str, Schema]) -> Schema:
    """Return the schema of ``matrix``.

    Args:
        properties: of the whole file.
        fault_keys: of any fault; the options of kinds are taken as they come.
    """
    places = dict(_places(properties, fault_keys))
    named = {_first(place): schema for place, schema in places.items()}
    exclude: Schema = {
        "description": _EXCLUDE,
        "type": "array",
        "items": {"type": "object", "minProperties": 1},
    }
    return {
        "description": _DESCRIPTION,
        "type": "object",
        "minProperties": 1,
        "properties": {**named, "exclude": exclude},
        "patternProperties": {
            **{_pattern(place): schema for place, schema in places.items() if "#" in place},
            # Options of kinds, and places inside values that the schema leaves open.
            r"^faults\.\d+\.\w+(\..+)?$": _ANY,
            r"^(target_options|waive|only_as_written|breaks)\..+$": _ANY,
            r"^expect\.(\d+\.)?\w+\.\d+$": _ANY,
        },
        "additionalProperties": False,
    }


def _places(
    properties: Mapping[str, Schema], fault_keys: Mapping[str, Schema]
) -> Iterator[tuple[str, Schema]]:
    """Yield every place, with # for the number of an entry, and the schema of its values."""
    for name, schema in properties.items():
        at = f"#/properties/{name}"
        yield name, _values(schema["description"], at)
        if name == "faults":
            yield "faults.#", _values("Merged into this fault: its keys win.", _ENTRIES[name])
            for key, each in fault_keys.items():
                at = "#/definitions/point" if key == "at" else f"{_FAULT_KEYS}/{key}"
                yield f"faults.#.{key}", _values(each["description"], at)
        elif name in _LISTS:
            yield f"{name}.#", _values("Merged into this entry: its keys win.", f"{at}/items")
            for key, each in schema["items"]["properties"].items():
                place = f"{at}/items/properties/{key}"
                yield f"{name}.#.{key}", _values(each["description"], place)
        if name not in _ENTRIES and name not in ("waive", "only_as_written"):
            for key, each in schema.get("properties", {}).items():
                yield f"{name}.{key}", _values(each["description"], f"{at}/properties/{key}")


def _values(description: str, ref: str) -> Schema:
    return {"description": description, **_ANY, "items": {"$ref": ref}}


def _first(place: str) -> str:
    return place.replace("#", "0")


def _pattern(place: str) -> str:
    return "^" + place.replace(".", r"\.").replace("#", r"\d+") + "$"
