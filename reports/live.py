"""What a run shows while it runs: a live table on a terminal, a line per scenario elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.padding import Padding
from rich.segment import ControlType
from rich.text import Text

from harness.contracts import Display, ScenarioResult, Verdict
from reports import phrases
from reports.eta import Eta, Plan
from reports.table import STYLES, safe_text, summary

REFRESH_S = 0.2  # at most one picture in this time: one takes some 0.8 ms of a core
IDLE_S = 1.0  # the clocks move this often when nothing happens
BAR_WIDTH, BAR_MIN_WIDTH = 40, 8
ROOMY = 72  # columns from which every column of the table has room
NAME_SHARE, NARROW_NAME_SHARE = 0.5, 0.4  # of the width, for the scenarios' names
LIMITED = "push"  # in the words of a phase that has a limit: a connect or a push
SCENARIO, THIS_PUSH, IN_ALL, DOES = "scenario", "this push", "in all", "what it does"


def make_display(
    console: Console,
    plain: bool,
    quiet: bool = False,
    rerun_options: Sequence[str] = (),
    plan: Callable[[], Plan] = Plan,
) -> Display:
    """Return lines where ``plain`` asks for them or no terminal is there, else the live table.

    ``quiet`` has lines for those alone that do not pass. ``plan`` is called for the live table
    alone: it may read what an earlier run left.
    """
    if quiet:
        return QuietDisplay(console, rerun_options)
    if plain or not console.is_terminal or console.is_dumb_terminal:
        return PlainDisplay(console)
    return LiveDisplay(console, plan())


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
    """A scenario that has no verdict yet. Times are seconds on the display's clock.

    Attributes:
        phase: which push it is in, or what it does before and between them.
        phase_since: when that began.
        step: what is done in it.
    """

    name: str
    since: float
    phase: str = "starting"
    phase_since: float = -1.0
    step: str = ""

    def comes_to(self, what: str, now: float) -> None:
        """Note what it does, as `Display.doing` is told."""
        phase, _, self.step = what.partition(": ")
        if phase != self.phase:
            self.phase, self.phase_since = phase, now


@dataclass
class Progress:
    """All that the live table shows. Times are seconds on the display's clock."""

    total: int
    began: float
    plan: Plan = field(default_factory=Plan)
    running: dict[str, Running] = field(default_factory=dict)
    results: list[ScenarioResult] = field(default_factory=list)
    most: int = 0  # that were seen running at once
    eta: Eta = field(init=False)

    def __post_init__(self) -> None:
        self.eta = Eta(self.plan, self.total)

    def start(self, name: str, now: float) -> None:
        self.running[name] = Running(name, now)
        self.most = max(self.most, len(self.running))

    def finish(self, result: ScenarioResult, now: float) -> None:
        begun = self.running.pop(result.name, None)
        self.results.append(result)
        self.eta.add(result.name, now - begun.since if begun else result.total_seconds)

    def left_s(self, now: float) -> float | None:
        """Return the seconds left; ``None`` while nothing is known of them."""
        running = {name: now - each.since for name, each in self.running.items()}
        return self.eta.left_s(running, self.most or self.plan.jobs)


class LiveDisplay:
    """The live table; scenarios that did not pass stay on the screen above it.

    A thread paints, at most every `REFRESH_S`, and only when something happened or a second
    passed: callers are never held up by a slow terminal, and the last event is never lost.
    """

    def __init__(
        self,
        console: Console,
        plan: Plan | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._plan = plan or Plan()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._over = threading.Event()
        self._progress = Progress(0, clock())
        self._unseen: list[ScenarioResult] = []  # not passed, and not on the screen yet
        self._widths: list[int] = []  # of the lines on the screen
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._painter = threading.Thread(target=self._paint_on, name="display", daemon=True)

    def begin(self, total: int) -> None:
        self._progress = Progress(total, self._clock(), self._plan)
        self._live.start()
        self._painter.start()
        self._changed.set()

    def started(self, name: str) -> None:
        with self._lock:
            self._progress.start(name, self._clock())
        self._changed.set()

    def doing(self, name: str, what: str) -> None:
        with self._lock:
            if name in self._progress.running:
                self._progress.running[name].comes_to(what, self._clock())
        self._changed.set()

    def finished(self, result: ScenarioResult) -> None:
        with self._lock:
            self._progress.finish(result, self._clock())
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
            self.paint()
            self._over.wait(REFRESH_S)
        self.paint()

    def paint(self) -> None:
        """Show what is known now: one write to the terminal, so that nothing flickers."""
        with self._lock:
            unseen, self._unseen = self._unseen, []
            image = picture(self._progress, self._clock(), self._console)
        with self._console:
            self._take_back_wrapped()
            for result in unseen:
                self._console.print(result_line(result, self._console))
                why = safe_text(result.sentence, self._console)
                self._console.print(Padding(why, (0, 0, 0, 2)))
            self._live.update(image, refresh=True)
        self._widths = [line.cell_len for line in image.split("\n")]

    def _take_back_wrapped(self) -> None:
        """Go up over the rows that a terminal made of lines when it became narrower than they."""
        width = self._console.width
        for _ in range(sum(max(each - 1, 0) // width for each in self._widths)):
            self._console.control(
                Control(
                    ControlType.CARRIAGE_RETURN,
                    (ControlType.ERASE_IN_LINE, 2),
                    (ControlType.CURSOR_UP, 1),
                )
            )


def result_line(result: ScenarioResult, console: Console, place: str = "") -> Text:
    """Return one finished scenario as a line, after ``place``: ``[ 12/118] ``."""
    line = Text().append(place, "dim").append(f"{result.verdict.value:<7} ", STYLES[result.verdict])
    line.append_text(safe_text(result.name, console))
    return line.append(f"  {phrases.duration(result.seconds)}", "dim")


def picture(progress: Progress, now: float, console: Console) -> Text:
    """Return the live table: a bar with the counts and times, then a row per running scenario.

    Args:
        progress: what is known.
        now: the time on the clock that ``progress`` was made with.
        console: gives the size; the table never wraps, and leaves a line of the screen free.
    """
    lines = _bar_lines(progress, now, console)
    room = console.height - 1 - len(lines)
    running = list(progress.running.values())
    if running and room > 1:
        lines += _rows(running, progress.plan, now, console, room)
    ascii_only = console.options.ascii_only
    for line in lines:
        line.truncate(console.width, overflow="crop" if ascii_only else "ellipsis")
    return Text("\n", no_wrap=True).join(lines[: max(console.height - 1, 1)])


def _rows(
    running: list[Running], plan: Plan, now: float, console: Console, room: int
) -> list[Text]:
    """Return the heading and a row per running scenario, in at most ``room`` lines."""
    roomy = console.width >= ROOMY
    most = room - 1
    shown = running if len(running) <= most else running[: max(most - 1, 0)]
    share = int(console.width * (NAME_SHARE if roomy else NARROW_NAME_SHARE))
    names = [_end_of(safe_text(each.name, console), share, console) for each in shown]
    times = [_against_limit(each, plan, now) for each in shown]
    width = max(len(SCENARIO), *(name.cell_len for name in names), 0)
    of_time = max(len(THIS_PUSH), *map(len, times), 0)
    heading = f"{SCENARIO:<{width}}  {THIS_PUSH:>{of_time}}  "
    heading += f"{IN_ALL:>7}  {DOES}" if roomy else DOES
    lines = [Text(heading, "dim")]
    for line, took, each in zip(names, times, shown, strict=True):
        line.append(" " * (width + 2 - line.cell_len))
        line.append(f"{took:>{of_time}}", "bold").append("  ")
        if roomy:
            line.append(f"{now - each.since:5.1f} s  ", "dim")
        line.append_text(safe_text(each.phase.replace("\n", " "), console, "cyan"))
        if each.step:
            line.append("  ").append_text(safe_text(each.step.replace("\n", " "), console, "dim"))
        lines.append(line)
    if len(shown) < len(running):
        lines.append(Text(f"and {len(running) - len(shown)} more", "dim"))
    return lines


def _against_limit(each: Running, plan: Plan, now: float) -> str:
    """Return how long a push has taken, and may: ``3.1 of 26 s``; nothing outside of pushes."""
    limit_s = plan.limits_s.get(each.name)
    if LIMITED not in each.phase:
        return ""
    took = f"{now - each.phase_since:.1f}"
    return f"{took} s" if limit_s is None else f"{took} of {limit_s:.0f} s"


def _end_of(name: Text, width: int, console: Console) -> Text:
    """Return a name cut to a width: its end tells more than its folder."""
    if name.cell_len <= width:
        return name
    mark = "" if console.options.ascii_only else "…"
    return Text(mark).append_text(name[len(name) - max(width - len(mark), 0) :])


def _bar_lines(progress: Progress, now: float, console: Console) -> list[Text]:
    """Return bar, number, counts and times: in one line where there is room, else in two."""
    number = Text(f" {len(progress.results)}/{progress.total}", "bold")
    counts = Text("  ").append_text(summary(progress.results))
    times = Text(f"  {in_words(now - progress.began)}", "dim")
    left_s = progress.left_s(now)
    if left_s is not None:
        times.append(f", {in_words(left_s)} left")
    room = console.width - number.cell_len - times.cell_len
    if room - counts.cell_len >= BAR_MIN_WIDTH:
        bar = _bar(progress, min(room - counts.cell_len, BAR_WIDTH), console)
        return [bar.append_text(number).append_text(counts).append_text(times)]
    bar = _bar(progress, max(min(room, BAR_WIDTH), 0), console)
    return [bar.append_text(number).append_text(times), counts[2:]]


def _bar(progress: Progress, width: int, console: Console) -> Text:
    filled = width * len(progress.results) // progress.total if progress.total else width
    full, empty = ("#", "-") if console.options.ascii_only else ("━", "─")
    return Text().append(full * filled, "green").append(empty * (width - filled), "dim")


def in_words(seconds: float) -> str:
    """Return whole seconds as one reads them: ``45 s``, ``2 min 05 s``, ``1 h 05 min``."""
    whole = max(int(seconds + 0.5), 0)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
