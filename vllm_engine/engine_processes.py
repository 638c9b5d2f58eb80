"""The processes of one real engine: who lives, who is stopped, and signals to them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness.contracts import Json
from harness.processes import ProcessIdentity, identify, state

ROLES = ("server", "core", "workers")
_STOPPED = ("T", "t")
_ENDED = ("Z", "X", None)


class EngineProcesses:
    """One engine's server, its core and its workers, told apart from later ones of the same pid.

    Args:
        pids: ``{"server": pid, "core": pid, "workers": [pid, ...]}``, all alive.

    Raises:
        ValueError: one is missing, or has ended.
    """

    def __init__(self, pids: Mapping[str, Json]) -> None:
        self._by_role: dict[str, list[ProcessIdentity]] = {}
        for role in ROLES:
            given = pids.get(role)
            found = [identify(p) for p in (given if isinstance(given, list) else [given]) if p]
            alive = [each for each in found if each is not None]
            if not alive or len(alive) < len(found):
                raise ValueError(
                    f"pids: expected living processes for {role}, found {given!r}. "
                    "Acquire a healthy server before starting its gateway."
                )
            self._by_role[role] = alive

    @property
    def server_pid(self) -> int:
        return self._by_role["server"][0].pid

    def gone(self) -> list[str]:
        """Return which have ended: any of them takes the whole engine along."""
        return [role for role in ROLES if any(_ended(each) for each in self._by_role[role])]

    def frozen(self) -> list[str]:
        """Return the roles of which some process is stopped."""
        return [
            role
            for role in ROLES
            if any(each.exists() and state(each.pid) in _STOPPED for each in self._by_role[role])
        ]

    def signal(self, number: int, process: str | None) -> None:
        """Signal ``server``, ``core`` or ``worker`` (the first), or all of the engine."""
        if process is not None:
            _send(self._by_role["workers" if process == "worker" else process][0], number)
            return
        server = self._by_role["server"][0]
        # What the server forked besides, such as multiprocessing's tracker, is in its group.
        if server.exists() and os.getpgid(server.pid) == server.pid:
            os.killpg(server.pid, number)
        else:
            for role in ROLES:
                for each in self._by_role[role]:
                    _send(each, number)


def _ended(process: ProcessIdentity) -> bool:
    return not process.exists() or state(process.pid) in _ENDED


def _send(process: ProcessIdentity, number: int) -> None:
    if process.exists():
        os.kill(process.pid, number)
