"""What each engine served, token by token, and which weights it may have served it from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.contracts import WeightOracle
from harness.observation import UNKNOWN_WEIGHTS
from harness.scenario import Scenario

START_LABEL = "default"


class WeightsOf:
    """Fingerprint -> which weights of a scenario they are.

    Args:
        scenario: gives seed and sharding.
        oracle: computes the fingerprints.
    """

    def __init__(self, scenario: Scenario, oracle: WeightOracle) -> None:
        self._scenario = scenario
        self._oracle = oracle

    def step(self, number: int, *, draft: bool = False) -> str:
        """Return the fingerprint of what push ``number`` sends; 0 is what engines start with."""
        return self._oracle.expected(
            seed=self._scenario.seed,
            step=number,
            workers=self._scenario.engines.workers,
            draft=draft,
            model=self._scenario.model,
        )

    def name(self, fingerprint: str | None) -> str:
        """Return words for weights: ``start``, ``push 2``, ``meta``, ``mixed`` or ``unknown``."""
        if fingerprint is None:
            return "meta"
        if fingerprint == UNKNOWN_WEIGHTS:
            return "unknown"
        for number in range(self._scenario.num_pushes + 2):
            if fingerprint == self.step(number):
                return f"push {number}" if number else "start"
        return "mixed"


def wrongly_served(events: Iterable[Mapping[str, Any]], weights: WeightsOf) -> list[str]:
    """Return a sentence for each kind of token that came from weights it must not have come from.

    A token is right if its weights are, to the byte, those of the push that published the label
    which the engine showed at that moment. Torn, dirty and unpublished weights all differ from it,
    and so does a label that moved without its weights.
    """
    push = 0
    # Engine and label -> the push that published it. By the label, since a real engine's token may
    # be read after the publication that followed it.
    published: dict[tuple[str, str], int] = {}
    wrong: dict[str, int] = {}
    for event in events:
        who = event["who"]
        match event["event"]:
            case "push" if event["phase"] == "begin":
                push = event["number"]
            case "version":
                published[who, event["version"]] = push
            case "started":  # a new process: what the one before it published is gone
                published = {key: step for key, step in published.items() if key[0] != who}
            case "token":
                expected = published.get((who, event["version"]), 0)
                if event["fingerprint"] != weights.step(expected):
                    sentence = (
                        f"{who} served from {weights.name(event['fingerprint'])} weights under "
                        f"label {event['version']!r}, which stands for {_of(expected)}"
                    )
                    wrong[sentence] = wrong.get(sentence, 0) + 1
    return [f"{sentence} ({count} tokens)" for sentence, count in wrong.items()]


def _of(push: int) -> str:
    return f"the weights of push {push}" if push else "the weights it started with"
