"""Somebody else takes the rendezvous port between the choice and the bind."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import ClassVar

from pydantic import PrivateAttr

from harness.contracts import Json
from harness.errors import InjectionError
from harness.faults.kind import FaultKind


class PortTaken(FaultKind):
    """Listen on the loopback port that the sender is about to bind, until the process ends."""

    kind: ClassVar[str] = "port_taken"
    strikes: ClassVar[tuple[str, ...]] = ("rank.bind",)

    _held: list[socket.socket] = PrivateAttr(default_factory=list)

    def label(self) -> str:
        return "finds its port taken"

    def in_thread(self, where: Mapping[str, Json]) -> None:
        squatter = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            squatter.bind(("127.0.0.1", where["port"]))
        except OSError as error:
            squatter.close()
            raise InjectionError(
                f"fault port_taken: expected port {where['port']} of 127.0.0.1 to be free just "
                f"before the sender binds it, found: {error}. "
                f"Reach rank.bind before the port is bound."
            ) from error
        squatter.listen()
        self._held.append(squatter)
