"""Which tokens an engine may serve: those of the weights that its label stands for."""

from __future__ import annotations

from typing import Any

import pytest
from observed import Oracle, event, make_scenario, pushing, token, weights

from harness.verdicts.serving import WeightsOf, wrongly_served

START, NEW, NEWER = weights(0), weights(1), weights(2)
PUBLISHED = event("version", version="1")
PUBLISHED_2 = event("version", version="2")
STARTED = event("started", workers=1)

# fmt: off
CASES = [
    # id, the journal, what it must say
    ("nothing-served", [], []),
    ("start-weights", [STARTED, token(START), pushing(1), token(START)], []),
    ("new-weights-under-the-new-label",
     [token(START), pushing(1), PUBLISHED, token(NEW, "1"), token(NEW, "1")], []),
    ("a-completion-that-spans-versions",
     [pushing(1), PUBLISHED, token(NEW, "1"), pushing(2), token(NEW, "1"), PUBLISHED_2,
      token(NEWER, "2")], []),
    ("read-after-the-publication-that-followed-it",
     [pushing(1), PUBLISHED, pushing(2), PUBLISHED_2, token(NEW, "1"), token(NEWER, "2")], []),
    ("a-label-nobody-published",
     [pushing(1), PUBLISHED, token(NEW, "2")],
     ["engine:0 served from push 1 weights under label '2', which stands for the weights it "
      "started with (1 tokens)"]),
    ("restarted-engine-serves-its-start",
     [pushing(1), PUBLISHED, token(NEW, "1"), STARTED, token(START)], []),
    ("engines-are-apart",
     [pushing(1), PUBLISHED, token(NEW, "1"), token(START, who="engine:1")], []),
    ("only-the-begin-counts",
     [pushing(1), PUBLISHED, event("push", "harness", number=1, phase="end"), token(NEW, "1")], []),
    ("a-corrupt-line", [event("journal.corrupt", "journal"), token(START)], []),

    ("torn", [pushing(1), token("torn"), token("torn")],
     ["engine:0 served from mixed weights under label 'default', which stands for the weights it "
      "started with (2 tokens)"]),
    ("unpublished", [pushing(1), token(NEW)],
     ["engine:0 served from push 1 weights under label 'default', which stands for the weights it "
      "started with (1 tokens)"]),
    ("published-before-they-came", [pushing(1), PUBLISHED, token(START, "1"), token(NEW, "1")],
     ["engine:0 served from start weights under label '1', which stands for the weights of push 1 "
      "(1 tokens)"]),
    ("label-left-behind", [pushing(1), PUBLISHED, pushing(2), token(NEWER, "1")],
     ["engine:0 served from push 2 weights under label '1', which stands for the weights of push 1 "
      "(1 tokens)"]),
    ("restarted-with-an-old-label-of-its-own",
     [pushing(1), PUBLISHED, STARTED, token(NEW, "default")],
     ["engine:0 served from push 1 weights under label 'default', which stands for the weights it "
      "started with (1 tokens)"]),
    ("on-meta", [token(None)],  # type: ignore[arg-type]
     ["engine:0 served from meta weights under label 'default', which stands for the weights it "
      "started with (1 tokens)"]),
    ("each-engine-by-itself", [token("a", who="engine:1"), token("b", who="engine:0")],
     ["engine:1 served from mixed weights under label 'default', which stands for the weights it "
      "started with (1 tokens)",
      "engine:0 served from mixed weights under label 'default', which stands for the weights it "
      "started with (1 tokens)"]),
]
# fmt: on


@pytest.mark.parametrize(
    ("events", "wrong"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_wrongly_served(events: list[dict[str, Any]], wrong: list[str]) -> None:
    """A token from any weights but those that its label stands for is told of, and counted."""
    assert wrongly_served(events, WeightsOf(make_scenario(), Oracle())) == wrong


@pytest.mark.parametrize(
    ("fingerprint", "name"),
    [
        (None, "meta"),
        (weights(0), "start"),
        (weights(1), "push 1"),
        (weights(2), "push 2"),  # the closing push
        (weights(3), "mixed"),
        ("", "mixed"),
    ],
)
def test_names_of_weights(fingerprint: str | None, name: str) -> None:
    """Weights are named by the push that sends them, up to the closing one."""
    assert WeightsOf(make_scenario(), Oracle()).name(fingerprint) == name
