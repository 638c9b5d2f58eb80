"""Errors of the user's world: usage and faults. Our own mistakes are asserts."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of the errors that a user can act on. Messages say: expected, found, next step."""


class UsageError(HarnessError):
    """The command line asks for something that is not there. Exit code 2."""


class InjectionError(HarnessError):
    """A fault was asked to strike where it cannot, so the run proves nothing."""


class LauncherError(Exception):
    """The machinery that starts processes failed; no scenario's fault and no verdict on one."""
