"""What an inference engine must do, whoever made it: one module of checks per contract.

A check is ``async def check(make: EngineMaker) -> None``; it makes fresh engines and raises
``AssertionError`` with what was sent, expected and found. `CHECKS` lists them all by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.engine import (
    layers,
    pausing,
    replies,
    serving,
    sessions,
    validation,
    versions,
)
from conformance.engine.contract import Check

CHECKS: Mapping[str, Check] = {
    f"{module.__name__.rpartition('.')[2]}.{check.__name__}": check
    for module in (sessions, replies, layers, versions, validation, pausing, serving)
    for check in module.CHECKS
}
