"""Several senders: engine slots with a leader each, and pipeline stages that send in turn."""

from __future__ import annotations

import pytest
from push_world import MakeWorld

from resync import Agreement, PipelineStages, PushFailed, PushReport, WeightUpdater
from resync.senders import in_turn
from resync.steps import Steps


def test_owners(make_world: MakeWorld) -> None:
    """Each rank looks at its own engines; a list of owners of another length is refused."""
    world = make_world(engines=2)
    errors = world.run(lambda rank: world.updaters[rank].connect(world.urls, [0]))
    assert [str(error) for error in errors] == [
        "owners: expected one rank for each of 2 engines, found [0]."
    ] * 2
    errors = world.run(lambda rank: world.updaters[rank].connect(world.urls, [0, 7]))
    assert "owners: expected ranks from 0 to 1, found [0, 7]: nobody would send" in str(errors[1])
    errors = world.run(lambda rank: world.updaters[rank].connect(world.urls, [0, rank]))
    assert "expected the same engines on every trainer rank" in str(errors[0])


def test_an_owner_that_sends_nothing(make_world: MakeWorld) -> None:
    """A version is not published on an engine whose owner's trainer engine made no update."""
    world = make_world(engines=2)
    world.run(lambda rank: world.updaters[rank].connect(world.urls, [0, 1]))
    outcomes = world.push()  # the doubles' rank 1 is no sender
    assert all(isinstance(outcome, PushFailed) for outcome in outcomes)
    assert "found none: the engines hold what they held" in str(outcomes[0])
    assert (world.labels, world.versions) == (["default", "default"], [0, 0])


@pytest.mark.parametrize(
    ("own", "senders", "message"),
    [
        (0, (), "senders: expected different ranks that begin with 0, found []"),
        (0, (2, 0), "senders: expected different ranks that begin with 0, found [2, 0]"),
        (0, (0, 0), "senders: expected different ranks that begin with 0, found [0, 0]"),
        (2, (0, 2), "own: expected a stage from 0 to 1, found 2"),
    ],
)
def test_stages_refused(own: int, senders: tuple[int, ...], message: str) -> None:
    """Rank 0 sends the first stage, and a rank belongs to one of them."""
    with pytest.raises(ValueError, match=r"^" + message.replace("[", r"\[")):
        PipelineStages(own=own, senders=senders)


@pytest.mark.parametrize(
    "options",
    [{"transport": "ipc"}, {"draft": True}, {"on_stuck": "quarantine"}],
    ids=lambda options: next(iter(options)),
)
def test_stages_go_with(options: dict[str, object]) -> None:
    """Stages are refused with what they do not go with, before anything is touched."""

    class Source:
        draft = False

    given = {"transport": "nccl", **options}
    with pytest.raises(ValueError, match=r"^stages: expected transport nccl, no draft"):
        WeightUpdater(
            open_channel=lambda client, source: None,  # type: ignore[arg-type] # never called
            source=Source(),  # type: ignore[arg-type] # never iterated
            stages=PipelineStages(own=0, senders=(0, 1)),
            **given,  # type: ignore[arg-type] # of the parameters above
        )


def test_in_turn() -> None:
    """A rank takes its own turn only, and no turn follows one that failed."""
    for own, fails, taken, seen in ((1, False, [1], 3), (1, True, [1], 2), (2, False, [2], 3)):
        heard: list[str] = []
        turns: list[int] = []

        def observe(step: str, /, *, heard: list[str] = heard, **details: object) -> None:
            if details["phase"] == "begin":
                heard.append(step)

        def work(own: int = own, fails: bool = fails, turns: list[int] = turns) -> None:
            turns.append(own)
            if fails:
                raise RuntimeError("refused")

        report = PushReport(version="1")
        agreement = Agreement(timeout_s=1, observe=observe)
        steps = Steps(agreement, rank=own, sends=False, report=report)
        decision = in_turn(PipelineStages(own=own, senders=(0, 1, 2)), steps, "open", work)
        assert (turns, decision.ok) == (taken, not fails)
        assert heard == [f"agree.open.{stage}" for stage in range(seen)]


def test_a_sender_of_another_stage() -> None:
    """A rank that sends for one stage and says that it is in another would send nothing."""
    PipelineStages(own=1, senders=(0, 2)).check_rank(3)
    with pytest.raises(ValueError, match="own: expected stage 1, since rank 2 sends for it"):
        PipelineStages(own=0, senders=(0, 2)).check_rank(2)
