"""Modules under test, named by ``package.module:factory``; the default is our own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from socket import socket
from typing import cast

from harness.contracts import Channel, Json, TargetFactory
from harness.errors import UsageError

DEFAULT = "harness.targets.resync_target:build"


def resolve(name: str) -> TargetFactory:
    """Import a target's factory.

    Raises:
        UsageError: its module cannot be imported, or has no such callable.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the module does when it is imported
        raise UsageError(
            f"target {name}: expected a module that can be imported, found "
            f"{type(error).__name__}: {error}. Put its folder on PYTHONPATH, or fix the import."
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(
            f"target {name}: expected a callable {attribute!r} in {module_name}, found "
            f"{'nothing' if factory is None else type(factory).__name__}. Write package.module:"
            "factory."
        )
    return cast(TargetFactory, factory)


def check(config: Mapping[str, Json], channel: Channel, sockets: list[socket]) -> None:
    """Entry of a process that imports targets in turn, and tells the launcher what is wrong.

    The launcher does not import them itself: they import torch, which costs it a second.
    """
    for name in config["targets"]:
        problems = []
        try:
            resolve(name)
        except UsageError as error:
            problems.append(str(error))
        channel.send({"target": name, "problems": problems})
