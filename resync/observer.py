"""The optional observer: it hears each step of a push on its rank."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Called on the thread that takes the step, before it (``phase="begin"``) and after it.

    Steps are ``agree.<step>`` (each agreement), ``channel.open``, ``request`` (with ``engine``,
    ``action`` and ``limit_s``; at the end ``ok`` and ``seconds``), ``idle`` (the wait for an engine
    to come to rest: ``engine``, ``after``, ``limit_s``), ``broadcasts`` (the sender's, while no
    request bounds them: ``limit_s``), ``finish_pass``, ``close``. A step that begins with a
    ``limit_s`` is bounded by that many seconds (``broadcasts`` is begun anew while the sender comes
    back): who watches takes it for a wait and not for a deadlock. What an observer raises counts as
    the step's own failure, so that a test can strike inside it.
    """

    def __call__(self, step: str, /, **details: Any) -> None: ...


def unobserved(step: str, /, **details: Any) -> None:
    """The default observer."""
