"""The stories of a run's journals, each read once where memory allows it."""

from __future__ import annotations

from pathlib import Path

from reports.journal_stream import stream
from reports.story import Story, tell

MAX_KEPT_SPANS = 1_500_000  # some 400 MB; beyond it, a journal is read again when it is needed


class Stories:
    """Tells journals' stories; several reports of one run share them."""

    def __init__(self) -> None:
        self._kept: dict[Path, Story] = {}
        self._num_spans = 0

    def of(self, journal: Path) -> Story:
        """Return the story of a journal; of one that is missing, an empty one that says so."""
        if (story := self._kept.get(journal)) is not None:
            return story
        story = tell(stream(journal))
        self._num_spans += len(story.spans)
        if self._num_spans <= MAX_KEPT_SPANS:
            self._kept[journal] = story
        return story
