"""The jitter of a slow fault: drawn from the seed, for each strike and worker apart."""

from __future__ import annotations

from harness.faults.slow import Slow


def _waits(
    seed: str, *, worker: int | None = None, num: int = 5, jitter: float = 0.1
) -> list[float]:
    fault = Slow(seconds=0.2, jitter=jitter).seeded(seed)
    return [fault.next_wait_s(worker) for _ in range(num)]


def test_the_seed_decides() -> None:
    """The same seed gives the same waits, another one gives others, and so do other workers."""
    assert _waits("1") == _waits("1")
    assert len({tuple(_waits("1")), tuple(_waits("2")), tuple(_waits("1", worker=0))}) == 3


def test_each_strike_draws_anew_within_the_jitter() -> None:
    """Waits differ from strike to strike, and stay between seconds minus and plus the jitter."""
    waits = _waits("1", num=100)
    assert len(set(waits)) == 100
    assert 0.1 <= min(waits) < 0.12
    assert 0.28 < max(waits) <= 0.3


def test_workers_do_not_disturb_each_other() -> None:
    """What a worker draws does not depend on when the others are struck."""
    fault = Slow(seconds=0.2, jitter=0.1).seeded("1")
    mixed = [fault.next_wait_s(worker) for worker in (0, 1, 1, 0, 1)]
    assert [mixed[0], mixed[3]] == _waits("1", worker=0, num=2)


def test_no_jitter_and_no_negative_wait() -> None:
    """Without jitter every wait is the same; with a large one none is shorter than nothing."""
    assert set(_waits("1", jitter=0.0)) == {0.2}
    assert min(_waits("1", jitter=5.0, num=50)) == 0.0


def test_processes_do_not_share_a_count() -> None:
    """A fault that is seeded twice counts its strikes in each, as two processes do."""
    fault = Slow(seconds=0.2, jitter=0.1)
    first, second = fault.seeded("1"), fault.seeded("1")
    assert first.next_wait_s() == second.next_wait_s()


def test_label() -> None:
    """Reports say how long, and how exactly."""
    assert Slow(seconds=0.2, jitter=0.1).label() == "is slow by 0.2 s, give or take 0.1"
