"""Runs the scenarios of one pytest session, or of one xdist worker, with a launcher of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.contracts import ScenarioResult, Verdict
from harness.engine_choice import AS_WRITTEN
from harness.errors import HarnessError, UsageError
from harness.launcher import Launcher
from harness.parts import default_parts, require_vllm
from harness.pytest_plugin.failure import CutOff, ScenarioDidNotPass
from harness.scenario import Scenario
from harness.suite import Suite
from harness.target_check import check_targets
from harness.targets import DEFAULT

if TYPE_CHECKING:
    from harness.pytest_plugin import ScenarioItem

# Of pytest-timeout's limit: what tearing a scenario down may take, and telling of it.
MARGIN_S = 5.0
MARGIN_SHARE = 0.2  # at most, where the limit is short


class Silent:
    """A display for those who have pytest's."""

    def begin(self, total: int) -> None:
        """Say nothing."""

    def started(self, name: str) -> None:
        """Say nothing."""

    def doing(self, name: str, what: str) -> None:
        """Say nothing."""

    def finished(self, result: ScenarioResult) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""


class ScenarioSession:
    """One launcher, started for the first scenario and ended by `close`.

    Args:
        config: of the session.
        scenarios: those that may run; what they need is imported before anything is forked.
    """

    def __init__(self, config: pytest.Config, scenarios: Sequence[Scenario]) -> None:
        self._target: str = config.getoption("resync_target") or DEFAULT
        self._engines: str = config.getoption("resync_engines") or AS_WRITTEN
        self._out_dir: Path = config.getoption("resync_out")
        if (worker := getattr(config, "workerinput", None)) is not None:
            self._out_dir /= worker["workerid"]  # workers run the same controls
        for folder in (config.rootpath, Path.cwd()):  # where a user's own target is
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
        usable = [scenario for scenario in scenarios if _lacks(scenario) is None]
        self._parts = default_parts(self._target, usable)
        self._results: dict[str, ScenarioResult] = {}
        self._targets: dict[str, UsageError | None] = {}
        self._runner = asyncio.Runner()
        self._launcher: Launcher | None = None
        self._suite: Suite | None = None

    def run_item(self, item: ScenarioItem) -> None:
        """Run the scenario of a test.

        Raises:
            ScenarioDidNotPass: its verdict is another than ``pass``.
            CutOff: it would have run into the test's time-out.
            UsageError: its target cannot be imported, or vLLM was chosen and is not there.
            LauncherError: no process can be started.
        """
        if (lack := _lacks(item.scenario)) is not None:
            if self._engines != AS_WRITTEN:  # asked for, so nothing may look passed
                raise UsageError(lack)
            pytest.skip(lack)
        limit_s = time_limit_s(item)
        begun_s = time.monotonic()
        try:
            result = self._runner.run(self._run(item.scenario, limit_s))
        except TimeoutError:
            self._suite = None  # it may hold a control run that was cut off
            raise CutOff(
                f"{item.scenario.name}: expected an end within {limit_s:g} s, found it running "
                f"after {time.monotonic() - begun_s:.0f} s: pytest-timeout would have ended the "
                "whole session a little later. Raise --timeout, or lower the scenario's time-outs."
            ) from None
        item.user_properties += [
            ("verdict", result.verdict.value),
            ("outcomes", ",".join(result.outcomes)),
            ("journal", str(result.journal)),
        ]
        if result.verdict is not Verdict.PASS:
            raise ScenarioDidNotPass(item.scenario, result, self._rerun_options())

    async def _run(self, scenario: Scenario, limit_s: float | None) -> ScenarioResult:
        async with asyncio.timeout(limit_s):
            launcher = await self._launched()
            await self._check(launcher, scenario.target or self._target)
            if self._suite is None:
                self._suite = Suite(
                    launcher,
                    self._parts,
                    out_dir=self._out_dir,
                    jobs=1,
                    display=Silent(),
                    results=self._results,
                )
            await self._suite.run([scenario])
        return self._results[scenario.name]

    async def _launched(self) -> Launcher:
        if self._launcher is None:
            _make_folder(self._out_dir)
            launcher = Launcher(self._parts.preload)
            await launcher.__aenter__()
            self._launcher = launcher
        return self._launcher

    async def _check(self, launcher: Launcher, target: str) -> None:
        """See once that a target can be imported.

        Raises:
            UsageError: it cannot.
        """
        if target not in self._targets:
            try:
                await check_targets(launcher, [target])
                self._targets[target] = None
            except UsageError as error:
                self._targets[target] = error
        if (problem := self._targets[target]) is not None:
            raise problem

    def _rerun_options(self) -> list[str]:
        engines = [] if self._engines == AS_WRITTEN else ["--engines", self._engines]
        target = [] if self._target == DEFAULT else ["--target", self._target]
        return [*engines, *target]

    def close(self) -> None:
        """End every process."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            self._runner.run(launcher.__aexit__(None, None, None))
        self._runner.close()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--resync-out {path}: expected a folder that can be written to, found "
            f"{error.strerror}. Choose another."
        ) from error


def _lacks(scenario: Scenario) -> str | None:
    """Return what a scenario needs that is not installed."""
    try:
        require_vllm([scenario])
    except HarnessError as error:
        return str(error)
    return None


def time_limit_s(item: pytest.Item) -> float | None:
    """Return how long a test may run so that pytest-timeout never strikes; ``None``: for ever.

    Its timer would end the whole process, or strike where native code waits, and leave scenarios'
    processes for the launcher to find.
    """
    if not item.config.pluginmanager.hasplugin("timeout"):
        return None
    timeout_s = _timeout_s(item)
    if timeout_s is None or timeout_s <= 0:
        return None
    return timeout_s - min(MARGIN_S, timeout_s * MARGIN_SHARE)


def _timeout_s(item: pytest.Item) -> float | None:
    """Return pytest-timeout's limit for a test: its marker's, or that of the session."""
    marker = item.get_closest_marker("timeout")
    found: list[Any] = []
    if marker is not None:
        found += [marker.args[0] if marker.args else marker.kwargs.get("timeout")]
    found += [
        item.config.getoption("timeout", default=None),
        os.environ.get("PYTEST_TIMEOUT"),
        item.config.getini("timeout"),
    ]
    for each in found:
        with suppress(TypeError, ValueError):
            return float(each)
    return None
