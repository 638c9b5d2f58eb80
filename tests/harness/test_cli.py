"""The command line: what each mistake gets, what the commands print, how a run ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness import cli
from harness.launcher import Launcher

ROOT = Path(__file__).parents[2]
HEAD = "proves: It holds.\ntransport: ipc\nexpect: {outcome: resumed}\n"
GOOD = HEAD + "tolerates: nothing is injected\ntrainer: {ranks: 2}\n"
BAD_TARGET = "target: tests.harness.bad_targets:"

FILES = {
    "good.yaml": GOOD,
    "unknown_key.yaml": HEAD + "fautls: []\n",
    "wrong_type.yaml": HEAD + 'seed: "one"\n',
    "rank.yaml": HEAD + "faults:\n  - {kind: kill, at: rank.gather, rank: 7}\n",
    "engine.yaml": HEAD + "faults:\n  - {kind: reject, at: engine.start, engine: 3}\n",
    "point.yaml": HEAD + "faults:\n  - {kind: port_taken, at: rank.gather, rank: 0}\n",
    "syntax.yaml": "proves: [It holds.\n",
    "many/a.yaml": HEAD + 'fautls: []\nseed: "one"\n',
    "many/b.yaml": HEAD + "faults:\n  - {kind: kill, at: rank.gather, rank: 7}\n",
    "many/c.yaml": GOOD,
    "in_the_way": "",
}
KEYS = (
    "proves, source, trainer, engines, transport, packed, draft, timeouts, seed, pushes, faults, "
    "restarts, before_connect, target, target_options, expect, tolerates, waive, breaks, "
    "only_as_written, deadline_s, matrix"
)
UNKNOWN_KEY = f'expected a key of {KEYS}, found "fautls". Did you mean faults?'
WRONG_TYPE = 'expected a whole number, found "one". Write it without quotes and units.'
RANK = (
    "expected a rank from 0 to 1 (trainer.ranks is 2), found 7. Lower it, or raise trainer.ranks."
)

# fmt: off
MISTAKES = [
    # id, arguments of run, what is printed
    ("unknown-key", ["unknown_key.yaml"], [f"unknown_key.yaml:4:1: fautls: {UNKNOWN_KEY}"]),
    ("wrong-type", ["wrong_type.yaml"], [f"wrong_type.yaml:4:7: seed: {WRONG_TYPE}"]),
    ("rank-out-of-range", ["rank.yaml"], [f"rank.yaml:5:41: faults.0.rank: {RANK}"]),
    ("engine-out-of-range", ["engine.yaml"],
     ["engine.yaml:5:46: faults.0.engine: expected an engine from 0 to 0 (engines.count is 1), "
      "found 3. Lower it, or raise engines.count."]),
    ("point-it-cannot-strike", ["point.yaml"],
     ["point.yaml:5:28: faults.0.at: expected a point that port_taken can strike (rank.bind), "
      "found rank.gather. Use one of those. rank.gather can be struck by freeze, gil, hang, kill, "
      "lock, loop, raise, slow, swallow."]),
    ("no-yaml", ["syntax.yaml"],
     ["syntax.yaml:2:1: expected valid YAML, found: while parsing a flow sequence did not find "
      "expected ',' or ']'. Correct the syntax here or just above."]),
    ("all-errors-at-once", ["many", "syntax.yaml"],
     [f"many/a.yaml:4:1: fautls: {UNKNOWN_KEY}",
      f"many/a.yaml:5:7: seed: {WRONG_TYPE}",
      f"many/b.yaml:5:41: faults.0.rank: {RANK}",
      "syntax.yaml:2:1: expected valid YAML, found: while parsing a flow sequence did not find "
      "expected ',' or ']'. Correct the syntax here or just above."]),
    ("no-such-path", ["good.yaml", "nowhere"],
     ["nowhere: expected a scenario file or a folder of them, found nothing there. Check the "
      "path."]),
    ("empty-folder", ["empty"],
     ["empty: expected a scenario file or a folder of them, found no .yaml file in it. Check the "
      "path."]),
    ("nothing-matches", ["good.yaml", "-k", "bad"],
     ["expected scenarios matching bad in good.yaml, found none of 1. `resync-chaos list "
      "good.yaml` shows their names."]),
    ("no-jobs", ["good.yaml", "-j", "0"], ["-j: expected at least 1, found 0."]),
    ("fewer-jobs", ["good.yaml", "-j", "-3"], ["-j: expected at least 1, found -3."]),
    ("out-is-a-file", ["good.yaml", "--out", "in_the_way"],
     ["--out in_the_way: expected a folder that can be written to, found File exists. Choose "
      "another with --out."]),
    ("out-is-below-a-file", ["good.yaml", "--out", "in_the_way/out"],
     ["--out in_the_way/out: expected a folder that can be written to, found Not a directory. "
      "Choose another with --out."]),
]
# fmt: on


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder with scenario files, good and bad, as the working directory."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test that starts the launcher."""

    async def start(self: Launcher) -> Launcher:
        raise AssertionError("a process was about to be started")

    monkeypatch.setattr(Launcher, "__aenter__", start)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, from the user's folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    command = [sys.executable, "-m", "harness.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "lines"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
@pytest.mark.usefixtures("no_process")
def test_mistakes(
    arguments: list[str], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake exits 2 with one line for each error, before any process is started."""
    assert cli.main(["run", *arguments]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()) == ("", lines)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.usefixtures("no_process")
def test_read_only_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that cannot be written to is said to be, before anything runs."""
    (tmp_path / "empty").chmod(0o555)
    for out in ("empty", "empty/out"):
        assert cli.main(["run", "good.yaml", "--out", out]) == 2
        assert capsys.readouterr().err == (
            f"--out {out}: expected a folder that can be written to, found Permission denied. "
            "Choose another with --out.\n"
        )


@pytest.mark.parametrize("arguments", [[], ["frob"], ["run"], ["run", "good.yaml", "-j", "two"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What argparse refuses exits 2 as well, with the usage."""
    with pytest.raises(SystemExit, match=r"^2$"):
        cli.main(arguments)
    assert capsys.readouterr().err.startswith("usage: resync-chaos")


# fmt: off
COMMANDS = [
    # id, arguments, exit code, what is printed on stdout
    ("check", ["check", "good.yaml"], 0, "files: 1, scenarios: 1, no errors\n"),
    ("check-chosen", ["check", "good.yaml", "many/c.yaml", "-k", "oo"], 0,
     "files: 1, scenarios: 1, no errors\n"),
    ("check-bad", ["check", "many"], 2, ""),
    ("list", ["list", "good.yaml", "many/c.yaml"], 0,
     "good  -               -  nothing is done to it\n"
     "c     -               -  nothing is done to it\n"),
    ("list-by-glob", ["list", "good.yaml", "many/c.yaml", "-k", "g*d"], 0,
     "good  -               -  nothing is done to it\n"),
    ("list-nothing", ["list", "good.yaml", "-k", "bad"], 2, ""),
]
# fmt: on


@pytest.mark.parametrize(
    ("arguments", "code", "printed"), [case[1:] for case in COMMANDS], ids=[c[0] for c in COMMANDS]
)
@pytest.mark.usefixtures("no_process")
def test_check_and_list(
    arguments: list[str], code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both read the files whole, and start nothing."""
    assert cli.main(arguments) == code
    assert capsys.readouterr().out == printed


def test_check_is_light() -> None:
    """Checking imports neither torch nor a server, and nothing that only a run needs."""
    heavy = ("torch", "numpy", "aiohttp", "fastapi", "uvicorn", "httpx", "rich",
             "resync", "fakes", "reports", "vllm_engine", "harness.launcher")  # fmt: skip
    code = (
        "import sys; from harness.cli import main; main(['check', 'good.yaml']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["schema"], ["check", "good.yaml"]], ids=["long", "short"])
def test_a_reader_that_has_read_enough(arguments: list[str]) -> None:
    """A closed pipe ends a command quietly, as it does others."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness.cli", *arguments]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


# fmt: off
BAD_MODULES = [
    # id, source of the module, what is said
    ("missing", None,
     "target mine:build: expected a module that can be imported, found ModuleNotFoundError: No "
     "module named 'mine'. Put its folder on PYTHONPATH, or fix the import.\n"),
    ("ends-the-process", "import os; print('bye', flush=True); os._exit(3)",
     "target mine:build: expected a module that can be imported, found one that ended with status "
     "3:\nbye\n"),
]
# fmt: on


@pytest.mark.processes
@pytest.mark.parametrize(
    ("source", "message"), [case[1:] for case in BAD_MODULES], ids=[c[0] for c in BAD_MODULES]
)
def test_target_that_cannot_be_imported(
    tmp_path: Path, source: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits 2 with the import error before a scenario runs."""
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    done = _run("run", "good.yaml", "--target", "mine:build", "--out", "out")
    assert (done.returncode, done.stderr, done.stdout) == (2, message, "")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.processes
def test_a_whole_run(tmp_path: Path) -> None:
    """Files are always written, each verdict has a line, and the exit code is the worst one."""
    source = "from tests.harness.bad_targets import Idle as build\n"
    (tmp_path / "mine.py").write_text(source)  # a user's own, in the working directory
    (tmp_path / "scenarios").mkdir()
    targets = {"lazy": "target: mine:build\n", "raises": f"{BAD_TARGET}raises\n", "good": ""}
    for name, target in targets.items():
        (tmp_path / f"scenarios/{name}.yaml").write_text(GOOD + target)
    done = _run("run", "scenarios", "--out", "out", "-j", "2", "--plain")
    assert (done.returncode, done.stderr) == (12, "")
    lines = done.stdout.splitlines()
    for words in ("] pass    good  ", "] fail    lazy  ", "] invalid raises  "):
        assert any(words in line for line in lines), lines
    assert any(line.startswith("1 pass, 1 fail, 0 hang, 1 invalid in ") for line in lines)
    reports = "report.html junit.xml reproduce.sh summary.md trace.json verdicts.json"
    assert lines[-1] == f"reports: {', '.join(f'out/{each}' for each in reports.split())}"
    suite = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    assert len(list(suite.iter("testcase"))) == 3
    verdicts = json.loads((tmp_path / "out/verdicts.json").read_text())
    assert verdicts["counts"] == {"pass": 1, "fail": 1, "hang": 0, "invalid": 1}
    for name in ("good", "lazy", "raises"):
        assert (tmp_path / f"out/{name}/journal.jsonl").stat().st_size > 0
