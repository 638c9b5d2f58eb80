"""The pytest plugin: every scenario and matrix cell is a test.

``pytest scenarios/`` collects them, in this repository and in any other. A ``.yaml`` file is taken
for scenarios when it is named on the command line, or says itself that it is one: two of the keys
`DECLARING` at its top level. Nothing else is touched. What is heavy is imported when a scenario is
collected or run, so that other people's test sessions pay nothing for the plugin.

Items are named like the scenarios: ``scenarios/scrub/fused_layer.yaml::fused_layer[ipc]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.pytest_plugin.session import ScenarioSession
    from harness.scenario import Scenario

DECLARING = ("proves", "expect", "transport", "faults")
DEFAULTS_FILE = "defaults.yaml"  # of a folder: no scenario
MAX_BYTES = 1_000_000  # of a file that is looked into
_DECLARED = re.compile(rf"^[\"']?({'|'.join(DECLARING)})[\"']?\s*:".encode(), re.MULTILINE)

_session = pytest.StashKey["ScenarioSession"]()
_marked = pytest.StashKey[set[str]]()
_left_out = pytest.StashKey[list[str]]()  # a line each
LEFT_OUT = "resync_left_out"  # of what an xdist worker hands to its controller


class ScenarioWarning(pytest.PytestWarning):
    """A scenario file can be run, and something about it is doubtful."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the target under test, the engines, and where runs leave their files."""
    group = parser.getgroup("resync-chaos", "failure scenarios of a weight push")
    group.addoption("--resync-target", metavar="MODULE:FACTORY",
                    help="the module under test (default: the resync that comes with the "
                    "harness)")  # fmt: skip
    group.addoption("--resync-engines", metavar="CHOICE",
                    help="as-written: those of each file; vllm: real ones, for every scenario that "
                    "they can be asked for; vllm-next: fakes under the rules that vLLM moves to "
                    "(default: as-written)")  # fmt: skip
    group.addoption("--resync-out", type=Path, default=Path("out/pytest"), metavar="DIR",
                    help="where journals, logs and verdicts go (default: %(default)s)")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that every scenario has, and see that the engines are known.

    Raises:
        pytest.UsageError: they are not.
    """
    if (engines := config.getoption("resync_engines")) is not None:
        from harness.pytest_plugin.engines import check_choice

        check_choice(engines)
    config.stash[_left_out] = []
    config.stash[_marked] = set()
    _register(config, "resync_chaos", "a failure scenario of a weight push")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes that scenarios were forked from."""
    session = config.stash.get(_session, None)
    if session is not None:
        session.close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    """Take a file of scenarios."""
    if file_path.suffix != ".yaml" or not _is_taken(file_path, parent.config):
        return None
    found: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return found


def _is_taken(path: Path, config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / each.partition("::")[0] for each in config.args)
    if any(path == each.resolve() or path == each for each in named):
        return True
    return path.name != DEFAULTS_FILE and declares_scenarios(path)


def declares_scenarios(path: Path) -> bool:
    """Whether the file says that it is a scenario, be it a broken one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return False
        keys = {found.decode() for found in _DECLARED.findall(path.read_bytes())}
    except OSError:
        return False
    return len(keys) > 1 and not keys.isdisjoint(DECLARING[:2])


@pytest.hookimpl(trylast=True)  # whoever deselects by name or marker is not told of others
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the scenarios that the chosen engines cannot be asked for."""
    without = [i for i in items if isinstance(i, ScenarioItem) and i.left_out is not None]
    if not without:
        return
    items[:] = [item for item in items if item not in without]
    config.hook.pytest_deselected(items=without)
    told = config.stash[_left_out]
    told += [f"left out: {item.scenario.name}: {item.left_out}" for item in without]
    if (worker := getattr(config, "workeroutput", None)) is not None:
        worker[LEFT_OUT] = told


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what an xdist worker has left out; each of them collects everything."""
    told = node.config.stash[_left_out]
    told += [
        each for each in getattr(node, "workeroutput", {}).get(LEFT_OUT, ()) if each not in told
    ]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which scenarios were left out, and why."""
    if config.stash[_left_out]:
        terminalreporter.section("scenarios left out")
    for line in config.stash[_left_out]:
        terminalreporter.line(line)


def _register(config: pytest.Config, marker: str, meaning: str) -> None:
    """Make a marker known, once, so that ``--strict-markers`` takes it."""
    if marker not in config.stash[_marked]:
        config.stash[_marked].add(marker)
        config.addinivalue_line("markers", f"{marker}: {meaning}")


class ScenarioFile(pytest.File):
    """One scenario file. Its errors are collection errors, with the messages of ``check``."""

    def collect(self) -> Iterator[ScenarioItem]:
        """Yield a test for each scenario of the file."""
        from harness.scenario_file import load_file

        file = load_file(_as_given(self.path))
        if file.errors:
            raise self.CollectError("\n".join(str(error) for error in file.errors))
        for warning in dict.fromkeys(map(str, getattr(file, "warnings", ()))):
            self.warn(ScenarioWarning(warning))
        for scenario, left_out in self._on_chosen_engines(file.scenarios):
            base, bracket, cell = scenario.name.partition("[")
            name = f"{base.rpartition('/')[2]}{bracket}{cell}"
            yield ScenarioItem.from_parent(self, name=name, scenario=scenario, left_out=left_out)

    def _on_chosen_engines(
        self, scenarios: Iterable[Scenario]
    ) -> Iterable[tuple[Scenario, str | None]]:
        """Return each scenario on the engines of this session, or why it cannot be there."""
        if (engines := self.config.getoption("resync_engines")) is None:
            return ((scenario, None) for scenario in scenarios)
        from harness.pytest_plugin.engines import on_engines

        return (on_engines(scenario, engines) for scenario in scenarios)


def _as_given(path: Path) -> Path:
    """Return the path as somebody in the current folder would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


class ScenarioItem(pytest.Item):
    """One scenario, or one cell of its file's matrix.

    Args:
        scenario: on the engines that the session chose.
        left_out: why it cannot run there, so that it is deselected.
    """

    def __init__(self, *, scenario: Scenario, left_out: str | None, **rest: Any) -> None:
        super().__init__(**rest)
        self.scenario = scenario
        self.left_out = left_out
        for marker, meaning in self._markers():
            _register(self.config, marker, meaning)
            self.add_marker(marker)

    def _markers(self) -> Iterator[tuple[str, str]]:
        yield "resync_chaos", ""
        theme = self.scenario.name.partition("[")[0].rpartition("/")[0]
        for folder in filter(None, theme.split("/")):
            yield f"theme_{re.sub(r'[^A-Za-z0-9_]', '_', folder)}", f"scenarios in {folder}/"
        transport = self.scenario.transport
        yield f"transport_{transport}", f"scenarios whose weights travel by {transport}"
        for kind in dict.fromkeys(fault.kind for fault in self.scenario.faults):
            yield f"fault_{kind}", f"scenarios with a fault of kind {kind}"

    def runtest(self) -> None:
        """Run and judge the scenario.

        Raises:
            ScenarioDidNotPass: its verdict is another than ``pass``.
        """
        self._running().run_item(self)

    def _running(self) -> ScenarioSession:
        from harness.pytest_plugin.session import ScenarioSession

        if _session not in self.config.stash:
            scenarios = [i.scenario for i in self.session.items if isinstance(i, ScenarioItem)]
            self.config.stash[_session] = ScenarioSession(self.config, scenarios)
        return self.config.stash[_session]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what to print: the verdict and its story, and no traceback of ours."""
        from harness.pytest_plugin.failure import words_of

        if self.config.getoption("fulltrace", default=False):
            return super().repr_failure(excinfo, style)
        return words_of(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the file, and the name that headings show."""
        return self.path, None, self.name
