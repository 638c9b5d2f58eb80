"""`doctor`: where time-outs are read, which one fires first, and what that means."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.authoring.job_limits import JobLimits, read_job
from harness.authoring.push_waits import EARLY, FINE, NEVER, waits_of
from resync.timeouts import PushTimeouts, TimeoutOrderError, check_group_timeouts

ROOT = Path(__file__).parents[3]


def _options(*job: str, **given: Any) -> Namespace:
    source = {"file": None, "pid": None, "job": list(job)}
    default = {"given": [], "without_resync": False, "vllm_client": False}
    return Namespace(**(source | default | given))


def _read(*job: str, **given: Any) -> JobLimits:
    return read_job(_options(*job, **given))


# fmt: off
READ = [
    # id, arguments of the job, limit, seconds
    ("default", [], "request", 1800.0),
    ("flag", ["--update-weight-request-timeout", "240"], "request", 240.0),
    ("equals", ["--update-weight-init-timeout=90.5"], "init", 90.5),
    ("minutes", ["--distributed-timeout-minutes", "30"], "trainer_groups", 1800.0),
    ("underscores", ["--update_weight_init_timeout", "60"], "init", 60.0),
    ("last-wins", ["--distributed-timeout-minutes", "1", "--distributed-timeout-minutes", "2"],
     "trainer_groups", 120.0),
    ("fixed", [], "rendezvous", 300.0),
]
# fmt: on


@pytest.mark.parametrize(
    ("job", "name", "seconds"), [case[1:] for case in READ], ids=[case[0] for case in READ]
)
def test_command_line(job: list[str], name: str, seconds: float) -> None:
    """Flags are read in both spellings, with their units, and defaults otherwise."""
    assert _read("python", "train.py", *job).seconds(name) == seconds


FILES = {
    "job.sh": "python train.py \\\n  --colocate \\\n  --update-weight-request-timeout 77 # s\n",
    "quoted.sh": "bash -c 'python train.py\n --colocate --update-weight-request-timeout 77\n'\n",
    "job.yaml": "train: {colocate: true, update_weight_request_timeout: 77}\n",
    "job.json": json.dumps({"colocate": True, "update_weight_request_timeout": 77}),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    """A script and settings say the same as a command line."""
    path = tmp_path / name
    path.write_text(FILES[name])
    job = _read(file=path)
    assert (job.seconds("request"), job.is_colocated) == (77.0, True)


def test_process() -> None:
    """The arguments of a running process are read."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", code, "--update-weight-request-timeout", "77"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        job = _read(pid=process.pid)
        process.communicate()
    assert job.seconds("request") == 77.0


def test_set_wins() -> None:
    """What the user says of a time-out wins over the job's flags."""
    job = _read("--update-weight-request-timeout", "5", given=["request=9", "gloo-groups=60"])
    assert (job.seconds("request"), job.seconds("gloo_groups")) == (9.0, 60.0)


# fmt: off
ORDERS = [
    # id, arguments, options, verdicts of: connect, pass, request, agreement
    ("defaults", [], {}, [FINE, EARLY, FINE, FINE]),
    ("ordered", ["--update-weight-request-timeout", "240"], {}, [FINE, FINE, FINE, FINE]),
    ("init-as-long", ["--update-weight-request-timeout", "240",
                      "--update-weight-init-timeout", "300"], {}, [EARLY, FINE, FINE, FINE]),
    ("colocated", ["--colocate"], {}, [FINE, EARLY, FINE, FINE]),
    ("longer-groups", ["--distributed-timeout-minutes", "61"], {}, [FINE, FINE, FINE, FINE]),
    ("no-resync", [], {"without_resync": True}, [FINE, EARLY, NEVER, EARLY]),
    ("vllm-client", [], {"vllm_client": True}, [EARLY, EARLY, FINE, FINE]),
    ("vllm-client-longer", [], {"vllm_client": True, "given": ["init=301", "request=1800"]},
     [FINE, EARLY, FINE, EARLY]),
    ("supervised", ["--use-fault-tolerance", "--distributed-timeout-minutes", "61"], {},
     [FINE, FINE, FINE, FINE, FINE]),
]
# fmt: on


@pytest.mark.parametrize(
    ("job", "given", "verdicts"), [case[1:] for case in ORDERS], ids=[case[0] for case in ORDERS]
)
def test_order(job: list[str], given: dict[str, Any], verdicts: list[str]) -> None:
    """Each wait is judged by what fires first."""
    assert [wait.verdict for wait in waits_of(_read(*job, **given))] == verdicts


@pytest.mark.parametrize("request_s", [100, 297, 298, 299, 300, 1800])
def test_agrees_with_the_module(request_s: int) -> None:
    """The pass is called wrong exactly where the module itself warns."""
    job = _read("--update-weight-request-timeout", str(request_s))
    try:
        groups = {"trainer": job.seconds("trainer_groups")}
        check_group_timeouts(PushTimeouts(request_s=request_s), groups, strict=True)
        expected = FINE
    except TimeoutOrderError:
        expected = EARLY
    assert waits_of(job)[1].verdict == expected


def _verdict_of_pass(minutes: int, request_s: int) -> str:
    flags = ("--distributed-timeout-minutes", "--update-weight-request-timeout")
    return waits_of(_read(flags[0], str(minutes), flags[1], str(request_s)))[1].verdict


@pytest.mark.parametrize(("minutes", "request_s"), [(1, 100), (10, 298), (10, 1800), (30, 1800)])
def test_advice_helps(minutes: int, request_s: int) -> None:
    """Either change that is named puts the pass in order, and less of it does not."""
    flags = ("--distributed-timeout-minutes", "--update-weight-request-timeout")
    wait = waits_of(_read(flags[0], str(minutes), flags[1], str(request_s)))[1]
    numbers = [int(word) for word in wait.change.split() if word.isdigit()]
    lower, longer = numbers[0], numbers[-1]
    assert _verdict_of_pass(longer, request_s) == FINE
    assert _verdict_of_pass(longer - 1, request_s) == EARLY
    assert _verdict_of_pass(minutes, lower) == FINE
    assert _verdict_of_pass(minutes, lower + 1) == EARLY


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what fires, what is seen then and what to change; 10 is the exit code."""
    assert cli.main(["doctor", "--", "train.py", "--colocate"]) == 10
    told = " ".join(capsys.readouterr().out.split())
    for text in (
        "the trainer's NCCL groups 600 s default of Megatron and torch",
        "how weights travel shared GPUs (--colocate): IPC",
        "2. too early: pass, IPC: the other ranks wait in all_gather_object or the barrier",
        "ends after 600 s, by the trainer's NCCL groups (--distributed-timeout-minutes) not by "
        "--update-weight-request-timeout (two requests, and time to settle): 3605 s",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=..., OpType=ALLREDUCE, ..., "
        "Timeout(ms)=600000) ran for 600000 milliseconds before timing out.",
        "change Lower --update-weight-request-timeout to 297 s or less, or raise "
        "--distributed-timeout-minutes to 61 or more",
        "1 of 4 waits end wrongly: 2",
    ):
        assert text in told


def test_report_of_a_sound_job(capsys: pytest.CaptureFixture[str]) -> None:
    """A job in order exits 0, and nothing is to be changed."""
    assert cli.main(["doctor", "--", "--update-weight-request-timeout", "240"]) == 0
    told = capsys.readouterr().out
    assert told.endswith("all 4 waits end in the right order\n")
    assert "change" not in told


def test_report_of_vllms_own_client(capsys: pytest.CaptureFixture[str]) -> None:
    """The limit of vLLM's HTTP client is known, with where it is from and what it looks like."""
    assert cli.main(["doctor", "--vllm-client"]) == 10
    told = " ".join(capsys.readouterr().out.split())
    for text in (
        "a request of a push 300 s default of vLLM 0.32's HTTPVLLMWeightSyncClient",
        "1. too early: connect",
        "ends after 300 s, by HTTPVLLMWeightSyncClient(timeout=...) not by vLLM's rendezvous store",
        "requests.exceptions.ReadTimeout: HTTPConnectionPool(host=..., port=...): Read timed out. "
        "(read timeout=300). The engine may still carry the request out",
        "change Raise HTTPVLLMWeightSyncClient(timeout=...) above 300 s",
    ):
        assert text in told
    assert "--update-weight" not in told


def test_needs_no_torch() -> None:
    """It reckons with the module's sums without importing torch, which takes seconds."""
    code = (
        "import sys; from harness import cli; code = cli.main(['doctor']); "
        "sys.exit(1 if 'torch' in sys.modules else code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 10, done.stderr


NAMES = "request, init, trainer_groups, gloo_groups, rendezvous, health_interval, health_timeout"
# fmt: off
MISTAKES = [
    # id, arguments, what is printed
    ("unknown-name", ["--set", "glo_groups=3"],
     f'--set: expected NAME=SECONDS with a name of {NAMES}, found "glo_groups=3". Did you mean '
     "gloo_groups?\n"),
    ("no-number", ["--set", "request=soon"],
     '--set request: expected a finite number above zero, found "soon". Correct it.\n'),
    ("nan", ["--", "--update-weight-request-timeout", "nan"],
     "the command line: --update-weight-request-timeout: expected a finite number above zero, "
     'found "nan". Correct it.\n'),
    ("no-value", ["--", "--update-weight-request-timeout", "--colocate"],
     "the command line: --update-weight-request-timeout: expected a finite number above zero, "
     "found true. Correct it.\n"),
    ("two-jobs", ["--pid", "1", "--", "train.py"],
     "expected one of a command line after --, --file, --pid, found a command line after -- and "
     "--pid. Keep one.\n"),
    ("no-file", ["--file", "nowhere.sh"],
     "--file nowhere.sh: expected a file that can be read, found No such file or directory. Check "
     "the path.\n"),
    ("a-folder", ["--file", "."],
     "--file .: expected a file that can be read, found Is a directory. Check the path.\n"),
    ("binary", ["--file", "binary"],
     "--file binary: expected a file that can be read, found no UTF-8 text. Check the path.\n"),
    ("a-list", ["--file", "list.yaml"],
     '--file list.yaml: expected a mapping of the job\'s options, found ["a"]. Write for example '
     "update_weight_request_timeout: 600.\n"),
    ("broken", ["--file", "broken.json"],
     "--file broken.json: expected valid JSON, found: Expecting property name enclosed in double "
     "quotes: line 1 column 2 (char 1). Correct it.\n"),
    ("no-process", ["--pid", "99999999"],
     "--pid 99999999: expected a running process whose arguments can be read, found No such file "
     "or directory. Check the number with ps.\n"),
]
# fmt: on


@pytest.mark.parametrize(
    ("arguments", "printed"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES]
)
def test_mistakes(
    arguments: list[str],
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake exits 2 and says what was expected."""
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(os.urandom(64) + b"\xff\xfe")
    Path("list.yaml").write_text("[a]\n")
    Path("broken.json").write_text("{")
    assert cli.main(["doctor", *arguments]) == 2
    assert capsys.readouterr() == ("", printed)
