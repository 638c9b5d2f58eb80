"""The forkserver: imports everything heavy once, then forks the processes of each scenario.

Started by the launcher as ``python -m harness.zygote FD``, where FD is its end of the control
socket. The frames on it (``harness.channel``) are:

==============================================  ===================================================
launcher to zygote                              zygote to launcher
==============================================  ===================================================
first: ``{preload, sys_path, scratch}``         ``{ready}``, or ``{error}`` and the zygote ends
``{request, start: [child, ...]}`` with, for    ``{request, started: [[pid, start_ticks], ...]}``
each child, its channel and then its sockets    or ``{request, error}``
``{request, end: [mark, ...]}``                 ``{request, ended: {mark: status before the kill}}``
nothing                                         ``{exited: mark, status}``, for every child
==============================================  ===================================================

A child is known by its mark (``harness.processes``). The end of the control socket means that the
launcher has died, however it died: the zygote kills everything, removes the run's scratch directory
and exits. One thread, no process group of torch: both would be broken in the children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from harness.channel import receive_frame, send_frame
from harness.huge_pages import onto_huge_pages
from harness.processes import children_of, is_exiting, mark_of, start_ticks
from harness.scratch import remove_tree
from harness.zygote_child import run_child

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Ending:
    """A request to end some children, until the last of them and of theirs is reaped."""

    request: int
    marks: frozenset[int]
    before: dict[int, int | None]  # mark -> status before the kill, None for one that lived
    dying: set[int]  # marks of those that were exiting already when we killed


class Zygote:
    """Serves the launcher's requests until its end of the control socket closes."""

    def __init__(self, control: socket.socket, scratch: Path) -> None:
        self._control = control
        self._scratch = scratch
        self._pids: dict[int, int] = {}  # pid -> mark, of the children not reaped yet
        self._statuses: dict[int, int] = {}  # mark -> exit status, until the child is ended
        self._endings: list[_Ending] = []
        self._wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def serve(self) -> None:
        """Return once the launcher has gone and everything is cleaned up."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in poll.poll()]
                if self._wakeup in ready:
                    os.read(self._wakeup, 4096)
                    self._reap()
                if self._control.fileno() in ready:
                    self._answer(*receive_frame(self._control))
        except (EOFError, ConnectionError):
            self._kill_everything()
            remove_tree(self._scratch)

    def _answer(self, message: Mapping[str, Any], fds: list[int]) -> None:
        if "start" in message:
            send_frame(self._control, self._start(message["request"], message["start"], fds))
        else:
            self._end(message["request"], frozenset(message["end"]))

    def _start(
        self, request: int, specs: Sequence[Mapping[str, Any]], fds: list[int]
    ) -> dict[str, Any]:
        """Fork every process of one request; on an error none of them is left."""
        pids = []
        try:
            for spec in specs:
                own = [fds.pop(0) for _ in range(1 + spec["num_sockets"])]
                pids.append(self._fork(spec, own))
                for fd in own:
                    os.close(fd)
        except OSError as error:
            for fd in [*own, *fds]:
                os.close(fd)
            for pid in pids:
                _kill(pid)
                os.waitpid(pid, 0)
                del self._pids[pid]
            found = f"{error}, after {len(pids)} of {len(specs)} processes"
            return {"request": request, "error": found}
        return {"request": request, "started": [[pid, start_ticks(pid)] for pid in pids]}

    def _fork(self, spec: Mapping[str, Any], fds: list[int]) -> int:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            run_child(spec, fds, zygote)
        # Both sides make the group, so that it exists for whoever is first to need it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._pids[pid] = spec["mark"]
        return pid

    def _end(self, request: int, marks: frozenset[int]) -> None:
        self._reap()
        before = {mark: self._statuses.pop(mark, None) for mark in marks}
        dying = set()
        for pid, mark in self._pids.items():
            if mark in marks:
                if is_exiting(pid):
                    dying.add(mark)
                _kill(pid)
        self._endings.append(_Ending(request, marks, before, dying))
        self._finish_endings()

    def _reap(self) -> None:
        """Take the status of every child that has ended, and tell the launcher."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            mark = self._pids.pop(pid, None)
            if mark is None:  # an adopted orphan
                continue
            status = os.waitstatus_to_exitcode(wait_status)
            self._note_status(mark, status)
            send_frame(self._control, {"exited": mark, "status": status})
        if self._endings:
            self._finish_endings()

    def _note_status(self, mark: int, status: int) -> None:
        for ending in self._endings:
            if mark in ending.marks:
                if mark in ending.dying or status != -signal.SIGKILL:  # it was faster
                    ending.before[mark] = status
                return
        self._statuses[mark] = status

    def _finish_endings(self) -> None:
        """Kill the orphans of what is being ended, and answer the requests that are complete.

        When a process dies its children become ours, so a tree is taken down level by level.
        """
        living = set(self._pids.values())
        for ending in list(self._endings):
            if not living.isdisjoint(ending.marks):
                continue
            orphans = self._orphans(ending.marks)
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            if orphans:
                continue  # their deaths bring us back here
            self._endings.remove(ending)
            before = {str(mark): status for mark, status in ending.before.items()}
            send_frame(self._control, {"request": ending.request, "ended": before})

    def _orphans(self, marks: frozenset[int]) -> list[int]:
        return [
            pid
            for pid in children_of(os.getpid())
            if pid not in self._pids and mark_of(pid) in marks
        ]

    def _kill_everything(self) -> None:
        while children := children_of(os.getpid()):
            for pid in children:
                if pid in self._pids:
                    _kill(pid)
                else:
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    """Kill a child that is not reaped yet, and its process group."""
    with contextlib.suppress(ProcessLookupError):  # the child may have joined another group
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)


def preload(modules: Sequence[str]) -> None:
    """Import ``modules`` and check that a fork is still safe afterwards.

    Args:
        modules: ``package.module``, or ``package.module:function`` to call as well.

    Raises:
        RuntimeError: a module cannot be imported, started a thread or made a process group.
    """
    for module in modules:
        name, _, function = module.partition(":")
        try:
            imported = importlib.import_module(name)
            if function:
                getattr(imported, function)()
        except Exception as error:
            raise RuntimeError(
                f"preload: expected an importable module {module}, found:\n"
                f"{''.join(traceback.format_exception(error))}"
            ) from error
        if (num_threads := len(os.listdir("/proc/self/task"))) > 1:
            raise RuntimeError(
                f"preload: expected one thread after importing {module}, found {num_threads}. "
                f"A fork would lose the others: start threads in the process's entry."
            )
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        raise RuntimeError(
            "preload: expected no process group, found an initialised one. "
            "Make it in the process's entry."
        )


def main(control_fd: int) -> NoReturn:
    """Preload, report, serve, and leave without any clean-up but our own."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    status = 1
    try:
        hello, _ = receive_frame(control)
        sys.path[:] = hello["sys_path"]
        # A child that is asked for its stacks before it can give them must not die of it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # Fewer preemptions on a loaded machine: a gather of four ranks is several times faster.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        preload(hello["preload"])
        gc.collect()
        onto_huge_pages()
        gc.freeze()  # collections in a child leave the shared pages alone
        zygote = Zygote(control, Path(hello["scratch"]))
        send_frame(control, {"ready": os.getpid()})
        zygote.serve()
        status = 0
    except RuntimeError as error:
        send_frame(control, {"error": str(error)})
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
