"""The JSON Schema of one field, and of one mapping of them, from the typed model."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from harness.contracts import Json
from harness.model_docs import meanings, summary
from harness.scenario_values import Section

Schema = dict[str, Json]
_ABSENT_DEFAULTS: tuple[Any, ...] = (None, "", (), [])


def field_schema(model: type[BaseModel], name: str) -> Schema:
    """Return the schema of one field, with what it means and what it is where it is not given."""
    field = model.model_fields[name]
    item = item_model(model, name)
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
        schema = object_schema(field.annotation)
    elif item is not None and name == "expect":
        one = object_schema(item)
        schema = {**one, "type": ["object", "array"], "minItems": 1, "items": one}
    elif item is not None:
        schema = {"type": "array", "items": object_schema(item)}
    else:
        type_: Any = field.annotation
        if field.metadata:
            type_ = Annotated[(type_, *field.metadata)]
        schema = _without_null(TypeAdapter(type_).json_schema())
        if schema.pop("$defs", None) is not None:  # pydantic's name for any JSON value
            schema["additionalProperties"] = True
        if field.get_default() not in (*_ABSENT_DEFAULTS, PydanticUndefined):
            default = TypeAdapter(Any).dump_python(field.default, mode="json")
            schema.setdefault("default", default)
    return {**schema, "description": meanings(model)[name]}


def _without_null(schema: Schema) -> Schema:
    """Return the schema of an optional field without its null, which nobody needs to write."""
    types = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if not types:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**types[0], **rest} if len(types) == 1 else {**rest, "anyOf": types}


def object_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a mapping that may lack any of its keys."""
    return {
        "type": "object",
        "description": summary(model),
        "properties": {name: field_schema(model, name) for name in model.model_fields},
        "additionalProperties": False,
    }


def item_model(model: type[BaseModel], name: str) -> type[Section] | None:
    """Return what a list of mappings holds; ``None`` for any other field."""
    annotation = model.model_fields[name].annotation
    if get_origin(annotation) is tuple:
        first = get_args(annotation)[0]
        if isinstance(first, type) and issubclass(first, Section):
            return first
    return None


def required_keys(model: type[BaseModel], name: str) -> list[str]:
    """Return what each mapping of a list of them must have."""
    item = item_model(model, name)
    assert item is not None, f"{name} is no list of mappings"
    return [key for key, field in item.model_fields.items() if field.is_required()]
