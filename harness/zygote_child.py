"""What a forked process does before, around and after its entry."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import io
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from harness.channel import SocketChannel
from harness.processes import mark_this_process

STACKS_SUFFIX = ".stacks"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def run_child(spec: Mapping[str, Any], fds: list[int], zygote: int) -> NoReturn:
    """Become the process that ``spec`` describes, right after the fork. Never returns.

    Args:
        spec: the fields of a ``contracts.ProcessSpec`` and the child's ``mark``.
        fds: the child's channel, then its sockets; every other descriptor is closed.
        zygote: the parent's pid; the child dies with it.
    """
    status = 1
    try:
        _isolate(spec["mark"], zygote)
        _redirect(Path(spec["log_path"]))
        _close_others(fds)
        _register_stacks(Path(spec["log_path"]))
        channel, *sockets = [socket.socket(fileno=fd) for fd in fds]
        module, _, function = spec["entry"].partition(":")
        entry = getattr(importlib.import_module(module), function)
        entry(spec["config"], SocketChannel(channel), sockets)
        status = 0
    except BaseException:  # SystemExit too: an entry that gives up early has failed
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):  # a full disk, or closed by the entry
            sys.stdout.flush()
            sys.stderr.flush()
        # Not sys.exit: joining gloo's threads and destroying groups take longer than a scenario.
        os._exit(status)


def _isolate(mark: int, zygote: int) -> None:
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:  # it died before the request above
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mark_this_process(mark)


def _redirect(log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # a killed process flushes nothing


def _close_others(fds: list[int]) -> None:
    """Close what the siblings' channels and sockets left open here, or their ends never close."""
    first = 3
    for fd in sorted(fds):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _register_stacks(log_path: Path) -> None:
    """Let SIGUSR1 append every thread's stack to ``<log_path>.stacks``, GIL or no GIL."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    stacks = os.open(log_path.with_name(log_path.name + STACKS_SUFFIX), flags, 0o644)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
