"""The JSON Schema of scenario files, for editors and validators, made from the typed model.

``schemas/scenario.schema.json`` is this schema; ``resync-chaos schema --out`` writes it. It says
what one key alone can say wrong, and which fault kind strikes where. What takes more than that,
such as ranges that follow from ``engines.count``, only `resync-chaos check` knows.
"""

from __future__ import annotations

from harness.contracts import Json
from harness.folder_defaults import ALLOWED
from harness.json_schema_faults import fault_definitions
from harness.json_schema_fields import Schema, field_schema, required_keys
from harness.json_schema_matrix import matrix_schema
from harness.model_docs import summary
from harness.scenario import Scenario

DRAFT = "http://json-schema.org/draft-07/schema#"


def scenario_schema() -> Schema:
    """Return the schema of a scenario file.

    A file without a matrix must be whole; in one with a matrix, any value may come from there.
    """
    properties = {name: field_schema(Scenario, name) for name in Scenario.model_fields}
    properties["faults"]["items"] = {"$ref": "#/definitions/fault"}
    definitions = fault_definitions()
    whole = {
        "required": ["proves", "expect"],
        # As patterns, since editors would offer these properties a second time.
        "patternProperties": {
            "^faults$": {"items": {"$ref": "#/definitions/whole_fault"}},
            "^restarts$": {"items": {"required": required_keys(Scenario, "restarts")}},
            "^before_connect$": {"items": {"required": required_keys(Scenario, "before_connect")}},
            "^expect$": {
                "if": {"type": "object"},
                "then": {"required": required_keys(Scenario, "expect")},
                "else": {"items": {"required": required_keys(Scenario, "expect")}},
            },
        },
    }
    matrix = matrix_schema(properties, definitions["fault_keys"]["properties"])
    schema = {
        "$schema": DRAFT,
        "title": "resync-chaos scenario",
        "description": summary(Scenario),
        "type": "object",
        "properties": {**properties, "matrix": matrix},
        "additionalProperties": False,
        "if": {"required": ["matrix"]},
        "then": {},
        "else": whole,
        "definitions": definitions,
    }
    shown: Schema = _as_editors_show(schema)
    return shown


def defaults_schema() -> Schema:
    """Return the schema of a folder's ``defaults.yaml``."""
    schema = {
        "$schema": DRAFT,
        "title": "resync-chaos defaults of a folder",
        "description": "What the scenarios of this folder, and of those below it, have in common.",
        "type": "object",
        "properties": {name: field_schema(Scenario, name) for name in ALLOWED},
        "additionalProperties": False,
    }
    shown: Schema = _as_editors_show(schema)
    return shown


def _as_editors_show(schema: Json) -> Json:
    """Return a schema whose texts are plain, with the Markdown beside it where there is any."""
    if isinstance(schema, list):
        return [_as_editors_show(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    shown = {key: _as_editors_show(value) for key, value in schema.items()}
    text = schema.get("description")
    if isinstance(text, str) and "`" in text:
        shown |= {"description": text.replace("`", ""), "markdownDescription": text}
    if "enumDescriptions" in schema:
        shown["enumDescriptions"] = [each.replace("`", "") for each in schema["enumDescriptions"]]
    return shown
