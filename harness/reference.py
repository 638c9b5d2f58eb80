"""The reference page of the scenario language, made from the typed model.

``docs/scenario-reference.md`` is this page; ``resync-chaos reference --out`` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from harness.contracts import Json
from harness.fault_points import FAULT_POINTS, FaultPoint
from harness.fault_spec import FaultSpec
from harness.faults import FAULTS
from harness.folder_defaults import ALLOWED, NAME
from harness.json_schema_faults import options_of, points_of
from harness.json_schema_fields import field_schema, item_model
from harness.matrix import MAX_CELLS, expand
from harness.model_docs import meanings, summary
from harness.scenario import (
    INVARIANTS,
    Engines,
    Expectation,
    Restart,
    Scenario,
    StagedRequest,
    TimeoutLimits,
    Trainer,
)
from harness.wording import show
from harness.yaml_document import MAX_BYTES, MAX_DEPTH

Row = Sequence[str]
_HEAD = """\
# Scenario files

This page is generated from the model in `harness/scenario.py`; `resync-chaos reference --out
docs/scenario-reference.md` writes it again, and a test holds the two together. Editors with a YAML
language server complete the keys and show the same texts, by the first line of each file:

```yaml
# yaml-language-server: $schema=../../schemas/scenario.schema.json
```

Elsewhere, `resync-chaos schema --out scenario.schema.json --mark PATH` writes the schema and these
lines.

A file is one YAML mapping: {limits}.
Nothing is coerced, unknown keys are refused, and `resync-chaos check FILE` prints every error at
once, each with line, column, what was expected, what was found and what to do. A whole scenario:

```yaml
proves: A colocated push whose update is refused once resends the whole model and resumes.
transport: ipc
trainer: {{ranks: 4, tensor_parallel: 2}}
engines: {{count: 2}}
faults:
  - {{kind: reject, at: engine.update, engine: 1}}
expect: {{outcome: resumed, attempts: 2, version: "1", generation: running}}
```
"""
_INVARIANTS = """\
Checked after every scenario. `waive` names those that need not hold and why; `breaks` those that
must turn out broken.
"""
_MAPPINGS: Mapping[str, type[BaseModel]] = {
    "trainer": Trainer,
    "engines": Engines,
    "timeouts": TimeoutLimits,
    "faults": FaultSpec,
    "restarts": Restart,
    "before_connect": StagedRequest,
    "expect": Expectation,
}
_MATRIX_EXAMPLE = """\
matrix:
  faults.0.at: [engine.start, engine.update]
  transport: [ipc, nccl]
  packed: [true, false]
  exclude: [{transport: ipc, packed: false}]
"""
_MATRIX_RULES = f"""\
A key is a dotted place of the file, with numbers for entries of lists: `faults.0.at`. Its values
are put there one after the other, each with each of the other keys; a mapping as a value is merged
into the one that stands there, and its keys win. `exclude` lists combinations to leave out. A
scenario is named after its file below the folder `scenarios`, and a cell after its values in the
order of the matrix, so names stay the same as long as the values do. At most {MAX_CELLS} cells.
"""
_DEFAULTS = f"""\
`{NAME}` in a folder holds for each scenario of that folder and of those below it. Folders count up
to the nearest one called `scenarios`, or else up to the root of the project (with `.git` or
`pyproject.toml`). The nearest file wins, key by key, also inside a mapping, and a scenario's own
keys win over all. It is no scenario itself. It may set what runs are made in:
{", ".join(f"`{key}`" for key in ALLOWED)}.
What happens and what is expected stands in each scenario.
"""
_RANDOM = """\
Everything random comes from `seed`: the same file is the same run. `engine`, `rank`, `worker` and
`tensor` of a fault may be `random`; they are drawn when the file is loaded, each fault apart from
the others, and `resync-chaos explain` says what was drawn. `jitter` of `slow` is drawn each time it
strikes. A matrix over `seed` tries several: its cells are named after the seeds.
"""
_WARNINGS = """\
`check` and `run` warn of time-outs that are ordered so that a scenario cannot prove what it says:

* `process_group_s` not above `request_s`: the peers' collective ends before the sender's request.
* `rendezvous_s` not below `init_s`, where it was set or an init is struck: the request ends first.
* a deadline that does not outlast `init_s`, `request_s` or the slow faults, or `process_group_s`
  where only that frees the peers of a rank that stops.
* in a push that only `slow` faults strike: a delay beyond the limit where the push is expected to
  succeed at once, one within it where it is expected to be noticed, or one too close to tell.
"""


def reference() -> str:
    """Return the page as Markdown."""
    limits = (
        f"UTF-8, at most {MAX_BYTES // 1024} KiB and {MAX_DEPTH} levels, without aliases or tags"
    )
    parts = [_HEAD.format(limits=limits), "## The file\n", _fields_of(Scenario)]
    for key, model in _MAPPINGS.items():
        parts += [f"## `{key}`\n", f"{summary(model)}\n", _fields_of(model)]
        if model is FaultSpec:
            parts += [*_kinds(), *_points()]
    parts += [
        "## Invariants\n",
        _INVARIANTS,
        _table(("invariant", "what must hold"), _invariants()),
    ]
    parts += ["## `matrix`\n", _MATRIX_RULES, *_matrix_example()]
    parts += [f"## `{NAME}`\n", _DEFAULTS, "## `seed`\n", _RANDOM, "## Warnings\n", _WARNINGS]
    return "\n".join(parts)


def _invariants() -> Iterator[Row]:
    yield from ((f"`{name}`", _sentence(text)) for name, text in INVARIANTS.items())


def _fields_of(model: type[BaseModel]) -> str:
    """Return the table of a mapping's fields, and one for each field that takes words."""
    texts = meanings(model)
    rows, words = [], []
    for name in model.model_fields:
        schema = field_schema(model, name)
        rows.append((f"`{name}`", _type(model, name, schema), _default(model, name), texts[name]))
        if name not in ("waive", "breaks") and (found := _words(schema)):
            words.append((name, found))
    tables = [_table(("key", "type", "default", "meaning"), rows)]
    for name, found in words:
        meant = ((f"`{word}`", _sentence(text)) for word, text in found.items())
        tables.append(_table((f"value of `{name}`", "meaning"), meant))
    return "\n".join(tables)


def _type(model: type[BaseModel], name: str, schema: Mapping[str, Json]) -> str:
    if name in _MAPPINGS and model is Scenario:
        mapping = f"[mapping](#{name})"
        if name == "expect":
            return f"{mapping}, or a list of them"
        return f"list of [mappings](#{name})" if item_model(model, name) else mapping
    if name in ("waive", "breaks"):
        return f"{'mapping' if name == 'waive' else 'list'} of [invariants](#invariants)"
    if model is FaultSpec and name in ("kind", "at"):
        return "[fault kind](#fault-kinds)" if name == "kind" else "[fault point](#fault-points)"
    return _said(schema)


def _said(schema: Mapping[str, Json]) -> str:
    """Return the type that a schema allows, in words."""
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(map(_said, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_said(schema['items'])}"
    if schema["type"] == "object":
        return "mapping" if "properties" not in schema else "mapping of reasons"
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true, false",
    }
    return f"{names[schema['type']]}{_limits(schema)}"


def _limits(schema: Mapping[str, Json]) -> str:
    said = []
    if "exclusiveMinimum" in schema:
        said.append(f"above {schema['exclusiveMinimum']:g}")
    if "minimum" in schema:
        said.append(f"from {schema['minimum']:g}")
    if "maximum" in schema:
        said.append(f"to {schema['maximum']:g}")
    if "pattern" in schema:
        said.append(f"as `{schema['pattern']}`".replace("|", r"\|"))
    return f" {' '.join(said)}" if said else ""


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if model is Scenario and name == "pushes":
        return "follows"
    if field.is_required():
        return "required"
    if field.default_factory is not None and field.annotation is int:
        return "follows"
    value: Any = {} if field.default_factory is not None else field.default
    if value in (None, (), {}):
        return ""
    if isinstance(value, BaseModel):
        return "its defaults"
    return f"`{value if isinstance(value, str) else show(_plain(value))}`"


def _plain(value: Any) -> Json:
    """Return a value as a file would say it: one visit for a list of one."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _words(schema: Mapping[str, Json]) -> dict[str, str]:
    """Return the words that a schema allows at its top, each with its meaning."""
    if "enumDescriptions" in schema and "enum" in schema:
        return dict(zip(schema["enum"], schema["enumDescriptions"], strict=True))
    found: dict[str, str] = {}
    for each in schema.get("anyOf", ()):
        found |= _words(each)
    return found


def _kinds() -> Iterator[str]:
    yield "### Fault kinds\n"
    rows = []
    for kind, behaviour in FAULTS.items():
        text = " ".join(summary(behaviour).split())
        rows.append(
            (f"`{kind}`", text, _strikes(kind), ", ".join(f"`{o}`" for o in options_of(kind)))
        )
    yield _table(("kind", "what happens", "strikes at", "options"), rows)
    yield "Options of the kinds:\n"
    options = []
    for kind, behaviour in FAULTS.items():
        texts = meanings(behaviour)
        for name in options_of(kind):
            said = _said(field_schema(behaviour, name))
            row = (f"`{kind}`", f"`{name}`", said, _default(behaviour, name), texts[name])
            options.append(row)
    yield _table(("kind", "key", "type", "default", "meaning"), options)


def _strikes(kind: str) -> str:
    points = set(points_of(kind))
    said = []
    for role in ("engine", "worker", "rank"):
        of_role = {name for name, point in FAULT_POINTS.items() if point.role == role}
        if of_role <= points:
            said.append(f"`{role}.*`")
        else:
            said += [f"`{name}`" for name in sorted(of_role & points)]
    return ", ".join(said)


def _points() -> Iterator[str]:
    yield "### Fault points\n"
    yield (
        "`engine.*` points are requests at an engine's front end, `worker.*` and `rank.*` points "
        "are\nreached in the thread of an engine's worker or of a trainer rank.\n"
    )
    rows = [
        (f"`{point.name}`", _sentence(point.reached), _reached_by(point), _selectors(point))
        for point in FAULT_POINTS.values()
    ]
    yield _table(("point", "when it is reached", "only", "narrowed by"), rows)


def _reached_by(point: FaultPoint) -> str:
    return ", ".join(filter(None, (point.transport, point.by and f"the {point.by}")))


def _selectors(point: FaultPoint) -> str:
    return ", ".join(f"`{key}`" for key in point.narrowed_by)


def _matrix_example() -> Iterator[str]:
    example = yaml.safe_load(_MATRIX_EXAMPLE)
    cells, problems = expand({"faults": [{}], **example})
    assert not problems, problems
    ids = "\n".join(f"session/refused{cell.id}" for cell in cells)
    yield f"```yaml\n{_MATRIX_EXAMPLE}```\n"
    yield f"in `scenarios/session/refused.yaml` is these scenarios:\n\n```\n{ids}\n```\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
