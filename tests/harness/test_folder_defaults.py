"""``defaults.yaml``: for whom it holds, who wins, and what it must not say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.scenario_file import discover, load_file

ONE = "proves: It holds.\nexpect: {outcome: resumed}\n"


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _load(path: Path) -> Scenario:
    loaded = load_file(path)
    assert [str(error) for error in loaded.errors] == []
    (scenario,) = loaded.scenarios
    return scenario


def test_the_nearest_wins_key_by_key(tmp_path: Path) -> None:
    """A scenario's own keys win over its folder's, and these over those of folders above."""
    _write(
        tmp_path / "scenarios",
        {
            "defaults.yaml": "transport: nccl\nseed: 5\nengines: {count: 2, workers: 2}\n",
            "deep/defaults.yaml": "engines: {count: 3}\ntarget_options: {a: 1, b: {c: 2}}\n",
            "deep/one.yaml": ONE + "seed: 7\ntarget_options: {b: {d: 3}}\n",
            "top.yaml": ONE,
        },
    )
    deep, top = (_load(tmp_path / "scenarios" / name) for name in ("deep/one.yaml", "top.yaml"))
    assert (deep.transport, deep.seed, deep.engines.count, deep.engines.workers) == (
        "nccl",
        7,
        3,
        2,
    )
    assert deep.target_options == {"a": 1, "b": {"c": 2, "d": 3}}
    assert (top.seed, top.engines.count, top.target_options) == (5, 2, {})


def test_a_matrix_starts_from_them(tmp_path: Path) -> None:
    """A dotted place may stand in what the defaults say."""
    _write(
        tmp_path,
        {
            "defaults.yaml": "transport: ipc\nengines: {workers: 2}\n",
            "one.yaml": ONE + "matrix: {engines.count: [1, 2]}\n",
        },
    )
    cells = [
        (s.engines.count, s.engines.workers) for s in load_file(tmp_path / "one.yaml").scenarios
    ]
    assert cells == [(1, 2), (2, 2)]


# fmt: off
REACH = [
    # id               where the defaults are   where the scenario is     whether they hold
    ("beside",         "",                      "one.yaml",               True),
    ("no-root",        "",                      "a/one.yaml",             False),
    ("to-scenarios",   "scenarios/",            "scenarios/a/b/one.yaml", True),
    ("not-beyond",     "",                      "scenarios/a/one.yaml",   False),
    ("not-sideways",   "scenarios/b/",          "scenarios/a/one.yaml",   False),
    ("in-a-project",   "project/",              "project/a/b/one.yaml",   True),
    ("not-beyond-it",  "",                      "project/a/one.yaml",     False),
]
# fmt: on


@pytest.mark.parametrize(
    ("defaults", "scenario", "holds"), [case[1:] for case in REACH], ids=[c[0] for c in REACH]
)
def test_reach(defaults: str, scenario: str, holds: bool, tmp_path: Path) -> None:
    """They hold below their folder, up to the folder ``scenarios`` or the root of the project."""
    _write(
        tmp_path,
        {
            "project/pyproject.toml": "",
            f"{defaults}defaults.yaml": "seed: 9\n",
            scenario: ONE + "transport: ipc\n",
        },
    )
    assert _load(tmp_path / scenario).seed == (9 if holds else 1)


def test_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path finds the defaults above it, also those above the working directory."""
    _write(
        tmp_path / "scenarios",
        {"defaults.yaml": "trainer: {ranks: 0}\n", "a/one.yaml": ONE + "transport: ipc\n"},
    )
    monkeypatch.chdir(tmp_path / "scenarios/a")
    (error,) = load_file(Path("one.yaml")).errors
    assert str(error) == (
        f"{os.path.join('..', 'defaults.yaml')}:1:18: trainer.ranks: expected a number from 1, "
        "found 0. Raise it."
    )


def test_a_change_is_seen(tmp_path: Path) -> None:
    """Defaults are read again once they have changed, as `run --watch` needs."""
    _write(tmp_path, {"defaults.yaml": "seed: 2\n", "one.yaml": ONE + "transport: ipc\n"})
    assert _load(tmp_path / "one.yaml").seed == 2
    _write(tmp_path, {"defaults.yaml": "seed: 33\n"})
    assert _load(tmp_path / "one.yaml").seed == 33


def test_they_are_no_scenario(tmp_path: Path) -> None:
    """A folder's defaults are passed over; a folder with nothing else holds no scenario."""
    _write(tmp_path, {"a/defaults.yaml": "seed: 2\n", "one.yaml": ONE})
    assert discover([tmp_path]) == [tmp_path / "one.yaml"]
    with pytest.raises(UsageError, match=r"found no \.yaml file in it"):
        discover([tmp_path / "a"])
