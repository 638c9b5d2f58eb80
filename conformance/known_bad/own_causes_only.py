"""Causes are not exchanged: a rank whose own work went well knows only that something failed."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.known_bad.patching import put
from harness.contracts import TargetContext
from harness.targets.resync_target import ResyncTarget
from harness.targets.resync_target import build as build_good
from resync import Agreement, Cause


def _keep(agreement: Agreement, causes: Sequence[Cause]) -> tuple[Cause, ...]:
    return tuple(causes)


def build(context: TargetContext) -> ResyncTarget:
    put(Agreement, "_exchange", _keep)
    return build_good(context)
