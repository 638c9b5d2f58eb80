"""The JSON Schema for editors: it is the model's, takes what is shipped, and explains each key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from harness import cli
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.json_schema import defaults_schema, scenario_schema
from harness.language_commands import schema_text
from harness.scenario import Scenario
from harness.yaml_document import read_document

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    "schemas/scenario.schema.json": scenario_schema(),
    "schemas/defaults.schema.json": defaults_schema(),
}
VALIDATOR = Draft7Validator(scenario_schema())
FILES = sorted((ROOT / "scenarios").rglob("*.yaml"))
OK = {"proves": "It holds.", "transport": "ipc", "expect": {"outcome": "resumed"}}


def _names(path: Path) -> str:
    return str(path.relative_to(ROOT / "scenarios"))


@pytest.mark.parametrize("file", SCHEMAS)
def test_the_shipped_file_is_the_models(file: str) -> None:
    """``resync-chaos schema --out FILE`` writes it anew, with --defaults for the other one."""
    text = schema_text(defaults="defaults" in file)
    assert (ROOT / file).read_text(encoding="utf-8") == text
    assert json.loads(text) == SCHEMAS[file]
    Draft7Validator.check_schema(SCHEMAS[file])


@pytest.mark.parametrize("path", FILES, ids=_names)
def test_shipped_scenarios_are_valid(path: Path) -> None:
    """A standard validator takes every scenario, and every folder's defaults."""
    schema = defaults_schema() if path.name == "defaults.yaml" else scenario_schema()
    found = Draft7Validator(schema).iter_errors(read_document(path)[0].data)
    assert [error.message for error in found] == []


@pytest.mark.parametrize("path", FILES, ids=_names)
def test_shipped_scenarios_name_their_schema(path: Path) -> None:
    """The first line of each file leads an editor to the schema, from wherever the file is.

    ``resync-chaos schema --out schemas/scenario.schema.json --mark scenarios`` writes the lines.
    """
    kind = "defaults" if path.name == "defaults.yaml" else "scenario"
    schema = os.path.relpath(ROOT / f"schemas/{kind}.schema.json", path.parent)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={schema}"


def _with(**fields: Any) -> dict[str, Any]:
    return OK | fields


def _fault(**fields: Any) -> dict[str, Any]:
    return _with(faults=[fields])


# fmt: off
VALID = [
    # id               a file
    ("least",          OK),
    ("without-transport", {"proves": "It holds.", "expect": OK["expect"]}),  # the folder's defaults
    ("each-push",      _with(expect=[OK["expect"]] * 2)),
    ("everything",     _fault(kind="slow", at="worker.load", engine="random", worker="all",
                              tensor="random", nth="always", seconds=1, jitter=0.5)),
    ("matrix-fills-in", _with(faults=[{"engine": 0}], matrix={
                              "faults.0": [{"kind": "kill", "at": "engine.start"}],
                              "expect.outcome": ["raised"]})),
    ("matrix-places",  _with(matrix={"trainer.ranks": [2], "faults.0.nth": [1, [2, 3], "always"],
                                     "faults.12.at": ["rank.gather"], "expect.1.version": ["1"],
                                     "target_options.a.b": [1], "waive.clean_push": ["so"],
                                     "faults.0.seconds": [1], "exclude": [{"seed": 1}]})),
]
INVALID = [
    # id               a file                                                    where
    ("empty",          {},                                                       []),
    ("no-proves",      {"transport": "ipc", "expect": OK["expect"]},             []),
    ("no-expect",      {"proves": "It holds.", "transport": "ipc"},              []),
    ("no-outcome",     _with(expect={"version": "1"}),                           ["expect"]),
    ("no-outcome-of-one", _with(expect=[OK["expect"], {}]),                      ["expect", 1]),
    ("unknown-key",    _with(fautls=[]),                                         []),
    ("unknown-inside", _with(engines={"cuont": 1}),                              ["engines"]),
    ("unknown-word",   _with(transport="tcp"),                                   ["transport"]),
    ("wrong-type",     _with(seed="one"),                                        ["seed"]),
    ("too-many",       _with(trainer={"ranks": 257}),                       ["trainer", "ranks"]),
    ("no-seconds",     _with(timeouts={"init_s": 0}),                    ["timeouts", "init_s"]),
    ("version-number", _with(expect={"outcome": "resumed", "version": 1}), ["expect", "version"]),
    ("waived-unknown", _with(waive={"torn": "so"}),                              ["waive"]),
    ("breaks-unknown", _with(breaks=["torn"]),                                   ["breaks", 0]),
    ("no-kind",        _fault(at="engine.start", engine=0),                      ["faults", 0]),
    ("no-point",       _fault(kind="kill", engine=0),                            ["faults", 0]),
    ("no-address",     _fault(kind="kill", at="rank.gather"),                    ["faults", 0]),
    ("no-option",      _fault(kind="slow", at="engine.start", engine=0),         ["faults", 0]),
    ("unknown-point",  _fault(kind="kill", at="engine.strat", engine=0),   ["faults", 0, "at"]),
    ("cannot-strike",  _fault(kind="raise", at="engine.start", engine=0),  ["faults", 0, "at"]),
    ("wrong-address",  _fault(kind="kill", at="rank.gather", engine=0, rank=0),  ["faults", 0]),
    ("wrong-selector", _fault(kind="kill", at="engine.init", engine=0, tensor="x"),
                                                                                 ["faults", 0]),
    ("foreign-option", _fault(kind="kill", at="engine.start", engine=0, status=500),
                                                                                 ["faults", 0]),
    ("option-range",   _fault(kind="reject", at="engine.start", engine=0, status=200),
                                                                      ["faults", 0, "status"]),
    ("restart",        _with(restarts=[{"what": "engine"}]),                     ["restarts", 0]),
    ("matrix-empty",   _with(matrix={}),                                         ["matrix"]),
    ("matrix-no-values", _with(matrix={"seed": []}),                        ["matrix", "seed"]),
    ("matrix-unknown", _with(matrix={"engins.count": [1]}),                      ["matrix"]),
    ("matrix-value",   _with(matrix={"engines.count": [1, "two"]}),
                                                            ["matrix", "engines.count", 1]),
    ("matrix-fault",   _with(matrix={"faults.3.at": ["rank.gater"]}),
                                                              ["matrix", "faults.3.at", 0]),
]
# fmt: on


@pytest.mark.parametrize("file", [case[1] for case in VALID], ids=[case[0] for case in VALID])
def test_valid(file: Any) -> None:
    """What the schema cannot judge, it leaves to `resync-chaos check`."""
    assert [error.message for error in VALIDATOR.iter_errors(file)] == []


@pytest.mark.parametrize(
    ("file", "place"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID]
)
def test_invalid(file: Any, place: list[str | int]) -> None:
    """A broken file is marked, and nowhere but where it is broken."""
    places = {tuple(error.absolute_path) for error in VALIDATOR.iter_errors(file)}
    assert places == {tuple(place)}


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = scenario_schema()["definitions"]["fault"]["allOf"]
    return rules


def _rule_of(kind: str) -> dict[str, Any]:
    (rule,) = [r for r in _rules() if r["if"].get("properties") == {"kind": {"enum": [kind]}}]
    return rule


@pytest.mark.parametrize("kind", FAULTS)
def test_an_editor_completes_the_points_of_a_kind(kind: str) -> None:
    """Once a fault has its kind, its `at` offers what that kind can strike, and nothing else."""
    at = _rule_of(kind)["then"]["properties"]["at"]
    assert at["enum"] == [name for name in FAULT_POINTS if FAULTS[kind].can_strike(name)]
    assert at["enumDescriptions"] == [FAULT_POINTS[name].reached for name in at["enum"]]


def _objects(schema: Any, way: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        yield way, schema
        for key, value in schema.items():
            yield from _objects(value, f"{way}/{key}")
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from _objects(value, f"{way}/{number}")


@pytest.mark.parametrize("kind", FAULTS)
def test_an_editor_offers_the_options_of_a_kind_to_it_alone(kind: str) -> None:
    """An entry that is still empty, or of another kind, is offered none of them."""
    is_meant = Draft7Validator(_rule_of(kind)["if"]).is_valid
    other = next(each for each in FAULTS if each != kind)
    offered = [is_meant(entry) for entry in (None, {}, {"kind": other}, {"kind": kind})]
    assert offered == [False, False, False, True]


@pytest.mark.parametrize("entry", [None, {}])
def test_an_editor_offers_every_point_to_an_empty_entry(entry: Any) -> None:
    """Whoever begins with the point is offered all of them."""
    asked = [rule for rule in _rules() if Draft7Validator(rule["if"]).is_valid(entry)]
    points = [rule["then"]["properties"].get("at") for rule in asked]
    assert {"$ref": "#/definitions/point"} in points


def test_an_editor_offers_no_key_twice() -> None:
    """What a file without a matrix must have besides is in patterns, which are not offered."""
    schema = scenario_schema()
    assert "properties" not in schema["else"]
    assert {way for way, each in _objects(schema["else"]) if "$ref" in each} == {
        "/patternProperties/^faults$/items"
    }


def test_an_editor_offers_what_people_write() -> None:
    """No null is offered, and what is inserted for ``nth`` fits into one line."""
    for schema in SCHEMAS.values():
        assert not [way for way, each in _objects(schema) if each.get("type") == "null"]
    assert scenario_schema()["definitions"]["fault_keys"]["properties"]["nth"]["default"] == 1


def test_every_key_and_word_has_a_hover_text() -> None:
    """Each key says what it means in a sentence, and each word of an enumeration what it does."""
    schema = scenario_schema()
    described = {**schema["properties"], **schema["definitions"]["fault_keys"]["properties"]}
    for way, each in _objects(schema):
        if (
            way.startswith(("/properties", "/definitions/fault/properties"))
            and "/matrix" not in way
        ):
            described |= each.get("properties", {})
        if "enumDescriptions" in each:
            assert len(each["enumDescriptions"]) == len(each.get("enum", [1])), way
            assert all(each["enumDescriptions"]), way
        elif "enum" in each and not way.endswith("propertyNames") and "/if" not in way:
            pytest.fail(f"{way}: no word of {each['enum']} is explained")
    assert set(Scenario.model_fields) <= set(described)
    for name, each in described.items():
        assert each["description"][0].isupper(), name
        assert each["description"].endswith((".", ":")), name


def test_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--mark` puts the line at the head of each scenario once; the rest stays, byte for byte."""
    (tmp_path / "deep").mkdir()
    one, deep = tmp_path / "one.yaml", tmp_path / "deep/two.yaml"
    defaults = tmp_path / "defaults.yaml"
    one.write_bytes(b"proves: It holds.\r\n# a comment")
    deep.write_bytes(b"# yaml-language-server: $schema=elsewhere.json\nproves: It holds.\n")
    defaults.write_bytes(b"seed: 1\n")
    arguments = ["schema", "--out", str(tmp_path / "s.json"), "--mark", str(tmp_path)]
    for _ in range(2):
        assert cli.main(arguments) == 0
    assert one.read_bytes() == (
        b"# yaml-language-server: $schema=s.json\nproves: It holds.\r\n# a comment"
    )
    assert deep.read_bytes() == (b"# yaml-language-server: $schema=../s.json\nproves: It holds.\n")
    assert defaults.read_bytes() == b"seed: 1\n"
    assert cli.main([*arguments, "--defaults"]) == 0
    assert defaults.read_bytes() == b"# yaml-language-server: $schema=s.json\nseed: 1\n"
    assert cli.main(["schema", "--mark", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "--mark: expected --out beside it, found none. Say where the schema is.\n"
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`schema` prints the schema or writes it, and says where it cannot."""
    assert cli.main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["schema", "--out", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text(encoding="utf-8") == printed
    assert cli.main(["schema", "--defaults"]) == 0
    assert json.loads(capsys.readouterr().out) == defaults_schema()
    assert cli.main(["schema", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"--out {tmp_path}: expected a file that can be written to, found Is a directory. Choose "
        "another with --out.\n"
    )
