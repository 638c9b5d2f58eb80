"""The optional observer: it hears each step of a push on its rank."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Called on the thread that takes the step, before it (``phase="begin"``) and after it.

    Steps are ``agree.<step>`` (each agreement), ``channel.open``, ``request`` (with ``engine``,
    ``action`` and ``limit_s``; at the end ``ok`` and ``seconds``), ``finish_pass``, ``close``. What
    an observer raises counts as the step's own failure, so that a test can strike inside it.
    """

    def __call__(self, step: str, /, **details: Any) -> None: ...


def unobserved(step: str, /, **details: Any) -> None:
    """The default observer."""
