"""Sees that the modules under test can be imported, before anything runs against them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.contracts import ProcessSpec
from harness.errors import UsageError
from harness.launcher import Launcher

TARGET_CHECK_LIMIT_S = 60.0


async def check_targets(launcher: Launcher, targets: Sequence[str]) -> None:
    """Import every target in a process of its own before anything runs.

    Raises:
        UsageError: one cannot be imported.
    """
    spec = ProcessSpec(
        name="targets",
        entry="harness.targets:check",
        config={"targets": list(targets)},
        log_path=launcher.scratch.path / "targets.log",
    )
    child = (await launcher.start([spec]))["targets"]
    problems: list[str] = []
    for target in targets:
        try:
            answer = await child.receive(TARGET_CHECK_LIMIT_S)
            found = ""
            if answer is None:
                status = await child.wait(TARGET_CHECK_LIMIT_S)
                found = f"one that ended with status {status}:\n{child.log_tail()}"
        except TimeoutError:
            answer, found = None, f"one that takes longer than {TARGET_CHECK_LIMIT_S:g} s"
        if answer is None:
            problems.append(
                f"target {target}: expected a module that can be imported, found {found}"
            )
            break  # the process that would import the others has gone, or is busy
        problems += answer["problems"]
    await launcher.end([child])
    if problems:
        raise UsageError("\n".join(problems))
