"""Time-outs in an order in which a scenario cannot prove what it says: warned of, not refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli
from harness.scenario_file import discover, load_file

CATALOGUE = Path(__file__).parents[2] / "scenarios"
HEAD = "proves: It holds.\ntransport: nccl\n"
OK = HEAD + "expect: {outcome: resumed}\n"
SLOW = "faults:\n  - {kind: slow, at: engine.update, engine: 0, seconds: %s}\n"
ONE_GO = HEAD + "timeouts: {request_s: 2}\nexpect: {outcome: resumed, attempts: 1}\n"
NOTICED = HEAD + "timeouts: {request_s: 2}\nexpect: {outcome: raised}\n"

# fmt: off
CASES = [
    # id, the file, its warnings
    ("none", OK, []),
    ("group-first", OK + "timeouts: {process_group_s: 5, request_s: 5}\n",
     ["4:29: timeouts.process_group_s: expected more than request_s (5 s), for which peers wait in "
      "a collective, found 5 s, so that the collective ends before the request does. Raise "
      "process_group_s, or lower request_s."]),
    ("group-by-default", OK + "timeouts: {request_s: 60}\n",
     ["4:11: timeouts.process_group_s: expected more than request_s (60 s), for which peers wait "
      "in a collective, found 30 s, so that the collective ends before the request does. Raise "
      "process_group_s, or lower request_s."]),
    ("no-peers", OK + "trainer: {ranks: 1}\ntimeouts: {process_group_s: 5, request_s: 5}\n", []),
    ("rendezvous", OK + "timeouts: {rendezvous_s: 11}\n",
     ["4:26: timeouts.rendezvous_s: expected less than init_s (10 s), so that a worker's answer "
      "comes before the request ends, found 11 s. Lower rendezvous_s, or raise init_s."]),
    ("rendezvous-of-a-struck-init", OK + "timeouts: {init_s: 3}\nfaults:\n"
     "  - {kind: hang, at: worker.init, engine: 0, push: 0}\n",
     ["4:11: timeouts.rendezvous_s: expected less than init_s (3 s), so that a worker's answer "
      "comes before the request ends, found 5 s. Lower rendezvous_s, or raise init_s."]),
    ("rendezvous-not-said", OK + "timeouts: {init_s: 3}\n", []),
    ("rendezvous-of-ipc", OK.replace("nccl", "ipc") + "timeouts: {rendezvous_s: 11}\n", []),
    ("deadline", OK + "deadline_s: 10\n",
     ["4:13: deadline_s: expected a deadline that outlasts timeouts.request_s (10 s), found 10 s. "
      "Raise deadline_s, or lower that limit."]),
    ("deadline-of-a-stopped-rank", OK + "deadline_s: 25\nfaults:\n"
     "  - {kind: freeze, at: rank.gather, rank: 1}\n",
     ["4:13: deadline_s: expected a deadline that outlasts timeouts.process_group_s, which frees "
      "the peers of a rank that stops (30 s), found 25 s. Raise deadline_s, or lower that limit."]),
    ("deadline-that-follows", OK + "timeouts: {init_s: 1, request_s: 1, rendezvous_s: 0.5}\n"
     "faults:\n  - {kind: hang, at: rank.gather, rank: 1}\n",
     ["4:11: timeouts: expected a deadline that outlasts timeouts.process_group_s, which frees the "
      "peers of a rank that stops (30 s), found 20 s, which follows from init_s and request_s. Set "
      "deadline_s, or lower it."]),
    ("deadline-long-enough", OK + "deadline_s: 31\nfaults:\n"
     "  - {kind: freeze, at: rank.gather, rank: 1}\n", []),
    ("slow-is-a-time-out", ONE_GO + SLOW % 3,
     ["6:57: faults.0.seconds: expected less than timeouts.request_s (2 s), since the push is "
      "expected to succeed at once, found 3 s, which is a time-out. Lower seconds, raise "
      "request_s, or expect a retry or a resend."]),
    ("slow-with-its-jitter", ONE_GO + SLOW % "1.5, jitter: 1",
     ["6:57: faults.0.seconds: expected less than timeouts.request_s (2 s), since the push is "
      "expected to succeed at once, found 2.5 s, which is a time-out. Lower seconds, raise "
      "request_s, or expect a retry or a resend."]),
    ("slow-is-none", NOTICED + SLOW % 1,
     ["6:57: faults.0.seconds: expected more than timeouts.request_s (2 s), since push 1 is "
      "expected to notice it, found 1 s, within which everything still succeeds. Raise seconds, or "
      "lower request_s."]),
    ("slow-on-the-edge", OK + "timeouts: {request_s: 2}\n" + SLOW % 1.95,
     ["6:57: faults.0.seconds: expected a delay well below or well above timeouts.request_s (2 s), "
      "found 1.95 s, which may end on either side of it. Move them apart."]),
    ("slow-as-it-says", ONE_GO + SLOW % 1, []),
    ("slow-for-a-bad-target", NOTICED + "target: mine:build\n" + SLOW % 1, []),
    ("slow-and-noticed", NOTICED + SLOW % 3, []),
    ("slow-and-resent", ONE_GO.replace("attempts: 1", "attempts: 2") + SLOW % 3, []),
    ("slow-and-more", NOTICED + SLOW % 1 + "  - {kind: reject, at: engine.start, engine: 0}\n", []),
    ("slow-rank", HEAD + "expect: {outcome: resumed, attempts: 1}\ntimeouts: {request_s: 2}\n"
     "faults:\n  - {kind: slow, at: rank.gather, rank: 1, seconds: 3}\n", []),
    ("slow-rank-often", HEAD + "expect: {outcome: resumed, attempts: 1}\nfaults:\n"
     "  - {kind: slow, at: rank.gather, rank: 1, seconds: 20, nth: [1, 2]}\n", []),
    ("slow-worker-often", ONE_GO + "faults:\n"
     "  - {kind: slow, at: worker.load, engine: 0, seconds: 1.5, nth: [1, 2]}\n",
     ["6:55: faults.0.seconds: expected less than timeouts.request_s (2 s), since the push is "
      "expected to succeed at once, found 3 s, which is a time-out. Lower seconds, raise "
      "request_s, or expect a retry or a resend."]),
    ("slow-beyond-the-deadline", HEAD + "expect: {outcome: resumed}\ndeadline_s: 35\nfaults:\n"
     "  - {kind: slow, at: rank.gather, rank: 1, seconds: 9, nth: [1, 2, 3, 4]}\n",
     ["4:13: deadline_s: expected a deadline that outlasts what slow faults take (36 s), found "
      "35 s. Raise deadline_s, or lower that limit."]),
    ("each-cell", ONE_GO + SLOW % 1 + "matrix: {faults.0.seconds: [1, 3]}\n",
     ["7:32: matrix.faults.0.seconds.1: expected less than timeouts.request_s (2 s), since the "
      "push is expected to succeed at once, found 3 s, which is a time-out. Lower seconds, raise "
      "request_s, or expect a retry or a resend."]),
]
# fmt: on


@pytest.mark.parametrize(
    ("text", "warnings"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_warnings(text: str, warnings: list[str], tmp_path: Path) -> None:
    """A doubtful file still gives its scenarios, and a warning at the line and column."""
    path = tmp_path / "one.yaml"
    path.write_text(text)
    loaded = load_file(path)
    assert [str(error) for error in loaded.errors] == []
    assert loaded.scenarios
    assert [str(warning) for warning in loaded.warnings] == [f"{path}:{each}" for each in warnings]


def test_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` prints the warning, and still finds no error."""
    monkeypatch.chdir(tmp_path)
    Path("one.yaml").write_text(OK + "deadline_s: 10\n")
    assert cli.main(["check", "one.yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "files: 1, scenarios: 1, no errors\n"
    assert printed.err == (
        "warning: one.yaml:4:13: deadline_s: expected a deadline that outlasts timeouts.request_s "
        "(10 s), found 10 s. Raise deadline_s, or lower that limit.\n"
    )


def test_the_catalogue_is_free_of_them() -> None:
    """No shipped scenario is doubtful."""
    warnings = [str(w) for path in discover([CATALOGUE]) for w in load_file(path).warnings]
    assert warnings == []
