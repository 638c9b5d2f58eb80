"""What a run shows while it runs: a live picture on a terminal, a line per scenario elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from harness.contracts import Display, ScenarioResult, Verdict
from reports import phrases
from reports.table import STYLES, safe_text, summary

REFRESH_S = 0.2  # at most one picture in this time: one takes some 0.8 ms of a core
IDLE_S = 1.0  # the clocks move this often when nothing happens
BAR_WIDTH = 24
ETA_FROM = 3  # scenarios done before the rate means anything


def make_display(
    console: Console, plain: bool, quiet: bool = False, rerun_options: Sequence[str] = ()
) -> Display:
    """Return lines where ``plain`` asks for them or no terminal is there, else the live picture.

    ``quiet`` has lines for those alone that do not pass.
    """
    if quiet:
        return QuietDisplay(console, rerun_options)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainDisplay(console)
    return LiveDisplay(console)


class PlainDisplay:
    """One line per finished scenario, and its sentence where it did not pass."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._total = 0
        self._done = 0

    def begin(self, total: int) -> None:
        self._total = total

    def started(self, name: str) -> None:
        """Say nothing: two lines per scenario would hide the failures."""

    def doing(self, name: str, what: str) -> None:
        """Say nothing: the journal has each step."""

    def finished(self, result: ScenarioResult) -> None:
        with self._lock:
            self._done += 1
            width = len(str(self._total))
            place = f"[{self._done:>{width}}/{self._total}] "
            self._console.print(result_line(result, self._console, place), soft_wrap=True)
            if result.verdict is not Verdict.PASS:
                why = Text(" " * len(place)).append_text(safe_text(result.sentence, self._console))
                self._console.print(why, soft_wrap=True)

    def end(self) -> None:
        """Say nothing: the table follows."""


class QuietDisplay(PlainDisplay):
    """A line and a sentence for each scenario that did not pass, with how to run it again."""

    def __init__(self, console: Console, rerun_options: Sequence[str]) -> None:
        super().__init__(console)
        self._rerun_options = rerun_options

    def finished(self, result: ScenarioResult) -> None:
        if result.verdict is Verdict.PASS:
            with self._lock:
                self._done += 1
            return
        super().finished(result)
        again = safe_text(
            f"again: {phrases.rerun_command(result, self._rerun_options)}", self._console
        )
        self._console.print(Text("    ").append_text(again), soft_wrap=True)


@dataclass
class Running:
    """A scenario that has no verdict yet."""

    name: str
    since: float  # on the display's clock, seconds
    what: str = "starting"


@dataclass
class Progress:
    """All that the live picture shows. Times are seconds on the display's clock."""

    total: int
    began: float
    running: dict[str, Running] = field(default_factory=dict)
    results: list[ScenarioResult] = field(default_factory=list)

    def eta_s(self, now: float) -> float | None:
        """Return the seconds left at the rate so far; ``None`` while there is no rate."""
        done = len(self.results)
        if done < ETA_FROM:
            return None
        return (now - self.began) / done * (self.total - done)


class LiveDisplay:
    """The live picture; scenarios that did not pass stay on the screen above it.

    A thread paints, at most every `REFRESH_S`, and only when something happened or a second
    passed: callers are never held up by a slow terminal, and the last event is never lost.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._over = threading.Event()
        self._progress = Progress(0, clock())
        self._unseen: list[ScenarioResult] = []  # not passed, and not on the screen yet
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._painter = threading.Thread(target=self._paint_on, name="display", daemon=True)

    def begin(self, total: int) -> None:
        self._progress = Progress(total, self._clock())
        self._live.start()
        self._painter.start()
        self._changed.set()

    def started(self, name: str) -> None:
        with self._lock:
            self._progress.running[name] = Running(name, self._clock())
        self._changed.set()

    def doing(self, name: str, what: str) -> None:
        with self._lock:
            if name in self._progress.running:
                self._progress.running[name].what = what
        self._changed.set()

    def finished(self, result: ScenarioResult) -> None:
        with self._lock:
            self._progress.running.pop(result.name, None)
            self._progress.results.append(result)
            if result.verdict is not Verdict.PASS:
                self._unseen.append(result)
        self._changed.set()

    def end(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._changed.set()
        if self._painter.ident is not None:  # begin was called
            self._painter.join()
            self._live.stop()

    def _paint_on(self) -> None:
        while not self._over.is_set():
            self._changed.wait(IDLE_S)
            self._changed.clear()
            self._paint()
            self._over.wait(REFRESH_S)
        self._paint()

    def _paint(self) -> None:
        with self._lock:
            unseen, self._unseen = self._unseen, []
            image = picture(self._progress, self._clock(), self._console)
        for result in unseen:
            self._console.print(result_line(result, self._console))
            why = safe_text(result.sentence, self._console)
            self._console.print(Padding(why, (0, 0, 0, 2)))
        self._live.update(image, refresh=True)


def result_line(result: ScenarioResult, console: Console, place: str = "") -> Text:
    """Return one finished scenario as a line, after ``place``: ``[ 12/118] ``."""
    line = Text().append(place, "dim").append(f"{result.verdict.value:<7} ", STYLES[result.verdict])
    line.append_text(safe_text(result.name, console))
    return line.append(f"  {phrases.duration(result.seconds)}", "dim")


def picture(progress: Progress, now: float, console: Console) -> Text:
    """Return the live picture: a bar with the counts, then a line per running scenario.

    Args:
        progress: what is known.
        now: the time on the clock that ``progress`` was made with.
        console: gives the size; the picture never wraps, and leaves a line of the screen free.
    """
    ascii_only = console.options.ascii_only
    lines = [_bar_line(progress, now, console)]
    room = max(console.height - 2, 1)
    running = list(progress.running.values())
    shown = running if len(running) <= room else running[: room - 1]
    name_width = max((len(each.name) for each in shown), default=0)
    for each in shown:
        line = Text("  ").append_text(safe_text(each.name, console))
        line.append(" " * (name_width - len(each.name)))
        line.append(f" {now - each.since:5.1f} s  ", "dim")
        lines.append(line.append_text(safe_text(each.what.replace("\n", " "), console, "cyan")))
    if len(shown) < len(running):
        lines.append(Text(f"  and {len(running) - len(shown)} more", "dim"))
    for line in lines:
        line.truncate(console.width, overflow="crop" if ascii_only else "ellipsis")
    return Text("\n", no_wrap=True).join(lines)


def _bar_line(progress: Progress, now: float, console: Console) -> Text:
    done = len(progress.results)
    filled = BAR_WIDTH * done // progress.total if progress.total else BAR_WIDTH
    full, empty = ("#", "-") if console.options.ascii_only else ("━", "─")
    line = Text().append(full * filled, "green").append(empty * (BAR_WIDTH - filled), "dim")
    line.append(f" {done}/{progress.total}  ", "bold").append_text(summary(progress.results))
    line.append(f"  {now - progress.began:.0f} s", "dim")
    eta_s = progress.eta_s(now)
    if eta_s is not None:
        line.append(f", {eta_s:.0f} s left", "dim")
    return line
