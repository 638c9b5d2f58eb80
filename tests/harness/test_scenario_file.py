"""From files to scenarios: names, defaults, discovery, speed, and errors whatever comes in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.fault_points import FAULT_POINTS
from harness.faults import FAULTS
from harness.scenario import Expectation, FaultSpec, Scenario
from harness.scenario_file import discover, load_file

ROOT = Path(__file__).parents[2]
MINIMAL = "proves: It holds.\ntransport: ipc\nexpect: {outcome: resumed}\n"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _load(tmp_path: Path, text: str) -> Scenario:
    """Return the one scenario of a file."""
    loaded = load_file(_write(tmp_path / "one.yaml", text))
    assert [str(error) for error in loaded.errors] == []
    (scenario,) = loaded.scenarios
    return scenario


def test_defaults(tmp_path: Path) -> None:
    """What a file does not say is what most scenarios want."""
    scenario = _load(tmp_path, MINIMAL)
    assert scenario.model_dump(exclude={"proves", "expect"}) == {
        "source": None,
        "trainer": {
            "ranks": 2,
            "pipeline_parallel": 1,
            "expert_parallel": 1,
            "senders": "one",
            "send_loop": "auto",
            "tensor_parallel": 2,
        },
        "engines": {"count": 1, "workers": 1, "kind": "fake", "profile": "vllm-0.32"},
        "transport": "ipc",
        "packed": True,
        "draft": False,
        "timeouts": {
            "init_s": 10.0,
            "request_s": 10.0,
            "process_group_s": 30.0,
            "rendezvous_s": 5.0,
        },
        "seed": 1,
        "pushes": 1,
        "faults": (),
        "restarts": (),
        "before_connect": (),
        "target": None,
        "target_options": {},
        "tolerates": None,
        "waive": {},
        "breaks": (),
        "only_as_written": {},
        "deadline_s": None,
    }


# fmt: off
VALUES = [
    # id              in the file                             field             value
    ("yes-is-text",   "proves: yes",                          "proves",         "yes"),
    ("time-is-text",  "proves: 12:30",                        "proves",         "12:30"),
    ("quoted-number", "proves: '1'",                          "proves",         "1"),
    ("exponent",      "deadline_s: 1e1",                      "deadline_s",     10.0),
    ("whole-seconds", "deadline_s: 3",                        "deadline_s",     3.0),
    ("options",       "target_options: {a: [1, ~]}",          "target_options", {"a": [1, None]}),
    ("breaks",        "breaks: [ranks_agree]",                "breaks",         ("ranks_agree",)),
    ("waive",         "waive: {clean_push: x}",               "waive",         {"clean_push": "x"}),
    ("target",        "target: a.b:build",                    "target",         "a.b:build"),
]
# fmt: on


@pytest.mark.parametrize(
    ("line", "field", "value"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES]
)
def test_values(line: str, field: str, value: Any, tmp_path: Path) -> None:
    """Values are YAML 1.2's, unchanged."""
    text = MINIMAL.replace("proves: It holds.\n", "") if field == "proves" else MINIMAL
    assert getattr(_load(tmp_path, f"{text}{line}\n"), field) == value


# fmt: off
TENSOR_PARALLEL = [
    # trainer                                          tensor  data parallel
    ("{ranks: 4}",                                     4,      1),
    ("{ranks: 4, tensor_parallel: 2}",                 2,      2),
    ("{ranks: 3}",                                     1,      3),
    ("{ranks: 64}",                                    16,     4),
    ("{ranks: 8, pipeline_parallel: 2}",               4,      1),
    ("{ranks: 8, pipeline_parallel: 2, tensor_parallel: 2}", 2, 2),
]
# fmt: on


@pytest.mark.parametrize(("trainer", "tensor", "data"), TENSOR_PARALLEL)
def test_layout(trainer: str, tensor: int, data: int, tmp_path: Path) -> None:
    """Ranks that are not said to be otherwise split the model, as far as it can be split."""
    layout = _load(tmp_path, f"{MINIMAL}trainer: {trainer}\n").trainer
    assert (layout.tensor_parallel, layout.data_parallel) == (tensor, data)


# fmt: off
PUSHES = [
    # id             expect and pushes                                   outcomes
    ("one",          "expect: {outcome: raised}",                        ["raised"]),
    ("one-each",     "expect: [{outcome: raised}, {outcome: resumed}]",  ["raised", "resumed"]),
    ("one-for-all",  "expect: {outcome: resumed}\npushes: 3",            ["resumed"] * 3),
    ("list-for-all", "expect: [{outcome: resumed}]\npushes: 2",          ["resumed"] * 2),
]
# fmt: on


@pytest.mark.parametrize(("lines", "outcomes"), [c[1:] for c in PUSHES], ids=[c[0] for c in PUSHES])
def test_pushes(lines: str, outcomes: list[str], tmp_path: Path) -> None:
    """There are as many pushes as expectations, unless one expectation is said to hold for more."""
    scenario = _load(tmp_path, f"proves: It holds.\ntransport: ipc\n{lines}\n")
    numbers = range(1, scenario.num_pushes + 1)
    assert [scenario.expectation(number).outcome for number in numbers] == outcomes


def test_names(tmp_path: Path) -> None:
    """A scenario is named by its path below the scenarios folder, and by its cell."""
    text = MINIMAL + "matrix: {engines.count: [1, 2], packed: [false]}\n"
    below = _write(tmp_path / "scenarios" / "session" / "deep" / "a.yaml", text)
    beside = _write(tmp_path / "other" / "b.yaml", MINIMAL)
    assert [s.name for s in load_file(below).scenarios] == [
        "session/deep/a[1-unpacked]",
        "session/deep/a[2-unpacked]",
    ]
    assert [s.name for s in load_file(beside).scenarios] == ["b"]
    assert load_file(below).scenarios[0].path == below


def test_discover(tmp_path: Path) -> None:
    """Folders give their files in order, at any depth, each once; other files are left alone."""
    paths = [_write(tmp_path / name, MINIMAL) for name in ("b/z.yaml", "a.yaml", "b/a.yaml")]
    _write(tmp_path / "b" / "notes.txt", "")
    assert discover([tmp_path, paths[1]]) == [paths[1], paths[2], paths[0]]
    assert discover([paths[0], tmp_path]) == [paths[0], paths[1], paths[2]]


@pytest.mark.parametrize(
    ("name", "found"), [("none", "nothing there"), (".", "no .yaml file in it")]
)
def test_nothing_to_discover(name: str, found: str, tmp_path: Path) -> None:
    """A path that leads to no scenario is an error, not an empty run."""
    path = tmp_path / name
    with pytest.raises(UsageError) as caught:
        discover([path])
    assert str(caught.value) == (
        f"{path}: expected a scenario file or a folder of them, found {found}. Check the path."
    )


def test_imports_neither_torch_nor_the_fakes() -> None:
    """Checking files stays light."""
    code = "import sys, harness.scenario_file as _; print({'torch', 'fakes'} & {*sys.modules})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "set()"


# ---- whatever a file holds, it gets scenarios or errors ----

_WORDS = st.sampled_from(
    ["all", "always", "ipc", "engine", "draft", "resumed", "1", "", "x", *FAULT_POINTS, *FAULTS]
)
_NUMBERS = st.booleans() | st.integers(-2, 70) | st.floats()
_LEAVES = st.none() | _NUMBERS | _WORDS | st.text(max_size=3)
_FIELDS = {*Scenario.model_fields, *FaultSpec.model_fields, *Expectation.model_fields}
_OTHERS = "ranks count workers init_s what before_push request faults.0.at 0"
_KEYS = st.sampled_from([*sorted(_FIELDS), *_OTHERS.split()])
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_FILES = st.dictionaries(
    st.sampled_from([*Scenario.model_fields, "matrix"]), _VALUES, max_size=6
).map(lambda more: {"proves": "p", "transport": "ipc", "expect": {"outcome": "resumed"}} | more)
_FORM = re.compile(r".+:\d+:\d+: .*expected .+, found:? .+", re.DOTALL)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=_FILES)
def test_any_values(data: dict[str, Any], tmp_path: Path) -> None:
    """Any values in any place give scenarios or well-formed errors, never both."""
    loaded = load_file(_write(tmp_path / "any.yaml", json.dumps(data)))
    assert bool(loaded.errors) != bool(loaded.scenarios)
    for error in loaded.errors:
        assert _FORM.fullmatch(str(error)), str(error)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60))
def test_any_bytes(content: bytes, tmp_path: Path) -> None:
    """Any bytes give errors."""
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    loaded = load_file(path)
    assert loaded.errors
    assert not loaded.scenarios
