"""``run --watch FILE``: runs again whenever a file is saved, with one launcher for all runs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, LauncherError
from harness.folder_defaults import NAME as DEFAULTS
from harness.launcher import Launcher

POLL_S = 0.2  # of the files' times; works on every file system, which notifications do not
EXIT_INTERRUPTED = 130

Stamps = dict[Path, tuple[int, int]]


class Kept:
    """A launcher that stays between runs: it takes seconds to start, a scenario tenths of one."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._launcher: Launcher | None = None
        self._preload: tuple[str, ...] = ()

    def run(self, work: Coroutine[Any, Any, int]) -> int:
        """Run a coroutine on the loop that all runs share."""
        return self._runner.run(work)

    @contextlib.asynccontextmanager
    async def launcher(self, preload: Sequence[str]) -> AsyncIterator[Launcher]:
        """Give the launcher for a run; another one where it must have imported other modules."""
        if self._launcher is None or self._preload != tuple(preload):
            await self._end()
            launcher = Launcher(preload)
            await launcher.__aenter__()
            self._launcher, self._preload = launcher, tuple(preload)
        try:
            yield self._launcher
        except LauncherError:
            await self._end()
            raise

    async def _end(self) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            await launcher.__aexit__(None, None, None)

    def close(self) -> None:
        """End the launcher and the loop."""
        self._runner.run(self._end())
        self._runner.close()


def watch(
    paths: Sequence[Path],
    run_once: Callable[[Kept], int],
    *,
    target: str,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Run, and run again after each change, until an interrupt; returns 130.

    Args:
        paths: scenario files, or folders of them.
        run_once: runs what the command line chose; a mistake in a file is told and waited out.
        target: of the command line. Its file is watched too where it lies in the current folder.
        wait: waits so many seconds.
    """
    kept = Kept()
    try:
        while True:
            seen = stamps(paths, target)
            try:
                if run_once(kept) == EXIT_INTERRUPTED:
                    return EXIT_INTERRUPTED
            except (HarnessError, LauncherError) as error:
                print(error, file=sys.stderr)
            print("watching: save a file to run again, Ctrl-C to end", flush=True)
            while stamps(paths, target) == seen:
                wait(POLL_S)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        kept.close()


def stamps(paths: Iterable[Path], target: str) -> Stamps:
    """Return time (ns) and size (bytes) of each watched file; one that is not there is left out."""
    module = Path(*target.partition(":")[0].split("."))
    files = [module.with_suffix(".py")]
    for path in paths:
        files += sorted(path.rglob("*.yaml")) if path.is_dir() else [path, path.parent / DEFAULTS]
    found: Stamps = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            found[file] = (status.st_mtime_ns, status.st_size)
    return found
