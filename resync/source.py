"""The trainer's weight source, wrapped so that a pass that was cut short can be completed.

Iterating the source is a collective: all ranks gather each tensor together. A sender that stops in
the middle leaves the others in a gather for ever, so after a failure it must run the rest of the
pass, or a whole pass if it had not started one, and only then agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from resync.errors import SourceFailed
from resync.observer import Observer, unobserved


class WeightSource(Protocol):
    """vLLM's shape: ``metadata()`` may be a collective pass of its own; iterating always is one.

    Iterating yields ``(name, tensor)`` with full tensors, in the order of ``metadata()``.
    """

    def metadata(self) -> Sequence[Any]:
        """Return name, dtype and shape of each tensor, in order."""

    def __iter__(self) -> Iterator[tuple[str, Any]]: ...


class ResumableWeightSource:
    """A weight source that knows how far the current pass has come.

    Wrap the source once, when the updater is built, and give the wrapper to the trainer engine. The
    live iterator is referenced here: vLLM's producers hold it alone, and a generator that lost its
    last reference would be closed in the middle of a collective.

    Attributes:
        inner: the wrapped source.
        num_gathered: tensors gathered on this rank so far, over all passes.
        bytes_yielded: bytes that the current pass gave to the trainer engine; what `finish_pass`
            drains is not counted.
    """

    def __init__(self, inner: WeightSource, *, observe: Observer = unobserved) -> None:
        self.inner = inner
        self.num_gathered = 0
        self.bytes_yielded = 0
        self._observe = observe
        self._live: Iterator[tuple[str, Any]] | None = None
        self._complete = False

    @property
    def draft(self) -> bool:
        """Whether passes send the draft model; kept on the wrapped source, if it has the flag."""
        return bool(getattr(self.inner, "draft", False))

    @draft.setter
    def draft(self, value: bool) -> None:
        if hasattr(self.inner, "draft"):
            self.inner.draft = value

    def metadata(self) -> Sequence[Any]:
        """Return the wrapped source's metadata; it does not count as a pass.

        Raises:
            SourceFailed: it raised. It may be a collective, so nothing can be agreed after it.
        """
        try:
            return self.inner.metadata()
        except Exception as error:
            raise SourceFailed(f"metadata() of the weight source: {error!r}") from error

    def begin_pass(self) -> None:
        """Forget the previous pass: the next iteration is a new one. Once a send, on every rank."""
        self._live = None
        self._complete = False
        self.bytes_yielded = 0

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Start the pass. One pass a send: a second iteration raises ``RuntimeError``."""
        if self._live is not None or self._complete:
            raise RuntimeError(
                "expected one iteration of the weight source per send, found a second one: every "
                "iteration is a collective of all ranks. Call begin_pass() before another send."
            )
        self._live = iter(self.inner)
        return self._pairs()

    def _pairs(self) -> Iterator[tuple[str, Any]]:
        while (pair := self._next()) is not None:
            self.bytes_yielded += _num_bytes(pair[1])
            yield pair

    def _next(self) -> tuple[str, Any] | None:
        assert self._live is not None, "begin_pass() forgot the pass that is still running"
        try:
            pair = next(self._live)
            self.num_gathered += 1
            return pair
        except StopIteration:
            self._complete = True
            return None
        except Exception as error:
            raise SourceFailed(f"the weight source, in a pass of all ranks: {error!r}") from error

    def finish_pass(self) -> None:
        """Complete the pass on this rank so that the other ranks' gathers complete.

        Runs the rest of the current pass, a whole pass if none was started, and nothing if the
        pass was complete.

        Raises:
            SourceFailed: the source raised.
        """
        if self._complete:
            return
        self._observe("finish_pass", phase="begin", started=self._live is not None)
        if self._live is None:
            self._live = iter(self.inner)
        while self._next() is not None:
            pass
        self._observe("finish_pass", phase="end")


def _num_bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
