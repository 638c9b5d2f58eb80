"""Finding the module under test, and what is said of one that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.targets import DEFAULT, check, resolve

MODULES = {
    "good_target": "def build(context): ...\nanswer = 42\n",
    "raising_target": "raise RuntimeError('no GPU here')\n",
    "broken_target": "def build(:\n",
    "importing_target": "import no_such_library\n",
}

# fmt: off
ERRORS = [
    # id, name, message
    ("missing", "no_such_target:build",
     "target no_such_target:build: expected a module that can be imported, found "
     "ModuleNotFoundError: No module named 'no_such_target'. Put its folder on PYTHONPATH, or fix "
     "the import."),
    ("raises", "raising_target:build",
     "target raising_target:build: expected a module that can be imported, found RuntimeError: no "
     "GPU here. Put its folder on PYTHONPATH, or fix the import."),
    ("imports-what-is-missing", "importing_target:build",
     "target importing_target:build: expected a module that can be imported, found "
     "ModuleNotFoundError: No module named 'no_such_library'. Put its folder on PYTHONPATH, or fix "
     "the import."),
    ("no-such-factory", "good_target:make",
     "target good_target:make: expected a callable 'make' in good_target, found nothing. Write "
     "package.module:factory."),
    ("no-callable", "good_target:answer",
     "target good_target:answer: expected a callable 'answer' in good_target, found int. Write "
     "package.module:factory."),
    ("no-factory-given", "good_target",
     "target good_target: expected a callable '' in good_target, found nothing. Write "
     "package.module:factory."),
    ("no-module-given", ":build",
     "target :build: expected a module that can be imported, found ValueError: Empty module name. "
     "Put its folder on PYTHONPATH, or fix the import."),
]
# fmt: on


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that a user may have written, on the path."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "message"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS]
)
def test_errors(name: str, message: str) -> None:
    """What cannot be used is named, with what was expected and the next step."""
    with pytest.raises(UsageError) as raised:
        resolve(name)
    assert str(raised.value) == message


def test_syntax_error() -> None:
    """A module that is no Python is told of with its line."""
    with pytest.raises(UsageError, match=r"found SyntaxError: .*\(broken_target\.py, line 1\)"):
        resolve("broken_target:build")


def test_resolve() -> None:
    """The default is there, and so is a user's own module."""
    assert callable(resolve(DEFAULT))
    assert resolve("good_target:build").__name__ == "build"  # type: ignore[attr-defined]


def test_check_answers_for_each() -> None:
    """Every target is answered for in turn, so that one that ends the process is known."""

    class Channel:
        def __init__(self) -> None:
            self.sent: list[Mapping[str, Any]] = []

        def send(self, message: Any) -> None:
            self.sent.append(message)

        def receive(self) -> None:
            return None

    channel = Channel()
    names = ["good_target:build", "good_target:make", "no_such_target:build"]
    check({"targets": names}, channel, [])
    assert [message["target"] for message in channel.sent] == names
    assert [len(message["problems"]) for message in channel.sent] == [0, 1, 1]
