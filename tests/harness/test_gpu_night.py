"""A night on machines with 0 to 8 GPUs: what runs, what is said, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import gpu_night
from harness.errors import UsageError
from harness.gpu_night import Entry, chosen, run_night, suites

CPU_LINE = (
    "no GPU found: real vLLM engines run on the CPU, over gloo groups that stand in for NCCL, and "
    "shared memory for CUDA IPC."
)
HEAD = "proves: It holds.\nexpect: {outcome: resumed}\ntolerates: nothing is injected\n"
IPC = HEAD + "transport: ipc\ntrainer: {ranks: 2}\n"
FILES = {
    "ipc.yaml": IPC,  # 1 GPU
    "nccl.yaml": HEAD + "transport: nccl\n",  # 2
    "both.yaml": HEAD + "engines: {count: 2}\nmatrix: {transport: [ipc, nccl]}\n",  # 1 and 3
    "large.yaml": HEAD + "transport: nccl\nengines: {count: 3, workers: 2}\n",  # 7
}
NAMES = list(FILES)


class Runs:
    """Stands in for `resync-chaos`: notes what it is asked for, and answers with a code."""

    def __init__(self, *codes: int) -> None:
        self.asked: list[list[str]] = []
        self._codes = list(codes)

    def __call__(self, arguments: Sequence[str]) -> int:
        self.asked.append(list(arguments))
        return self._codes.pop(0) if self._codes else 0

    @property
    def files(self) -> list[str]:
        return [Path(arguments[1]).name for arguments in self.asked]


@pytest.fixture
def entries(tmp_path: Path) -> list[tuple[str, Entry]]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return [(f"night:{n}", (str(tmp_path / name), 8, (), {})) for n, name in enumerate(NAMES)]


# fmt: off
NIGHTS = [
    # GPUs, files that run,            partly only,      skipped
    (0,     NAMES,                     set(),            []),
    (1,     ["ipc.yaml", "both.yaml"], {"both.yaml"},    ["nccl.yaml", "large.yaml"]),
    (2,     NAMES[:3],                 {"both.yaml"},    ["large.yaml"]),
    (4,     NAMES[:3],                 set(),            ["large.yaml"]),
    (8,     NAMES,                     set(),            []),
]
# fmt: on


@pytest.mark.parametrize(("gpus", "run", "partly", "skipped"), NIGHTS)
def test_what_runs(
    entries: list[tuple[str, Entry]],
    capsys: pytest.CaptureFixture[str],
    gpus: int,
    run: list[str],
    partly: set[str],
    skipped: list[str],
) -> None:
    """What fits runs, on the GPUs where there are any; the rest is listed, and never as passed."""
    runs = Runs()
    assert run_night(entries, gpus, runs) == 0
    assert runs.files == run
    assert all(("--device" in arguments) == (gpus > 0) for arguments in runs.asked)
    listed = capsys.readouterr().out.partition("== the night\n")[2].splitlines()
    told = dict(zip(NAMES, listed, strict=True))
    assert [name for name in NAMES if told[name].startswith("passed   ")] == run
    assert [name for name in NAMES if told[name].startswith("skipped  ")] == skipped
    assert {name for name in run if "left out" in told[name]} == partly


def test_what_a_skipped_entry_says(
    entries: list[tuple[str, Entry]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which scenario needs what, and how many GPUs there are."""
    assert run_night(entries, 2, Runs()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        "2 GPUs found: vLLM's engines and trainer classes run on them, over NCCL and CUDA IPC; "
        "what needs more is left out."
    )
    assert printed[-2] == "passed   night:2: 1 scenarios, 1 left out"
    why = "expected 7 GPUs (one for each worker and one for the sender), found 2."
    assert printed[-1].startswith("skipped  night:3: ")
    assert why in printed[-1]


def test_without_a_gpu(
    entries: list[tuple[str, Entry]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so before anything else, and runs the same list on the stand-ins."""
    runs = Runs()
    run_night(entries[:1], 0, runs)
    assert capsys.readouterr().out.splitlines()[0] == CPU_LINE
    options = ["--engines", "vllm", "--plain", "--out", "out/gpu_night/night-0"]
    assert runs.asked == [["run", entries[0][1][0], *options]]


@pytest.mark.parametrize(
    ("codes", "code", "words"),
    [
        ((0, 0), 0, ["passed", "passed"]),
        ((10, 0), 10, ["FAIL", "passed"]),
        ((11, 12), 12, ["HANG", "INVALID"]),
        ((0, -9), 137, ["passed", "exit -9"]),
        ((2, 0), 2, ["exit 2", "passed"]),
    ],
)
def test_exit_codes(
    entries: list[tuple[str, Entry]],
    capsys: pytest.CaptureFixture[str],
    codes: tuple[int, ...],
    code: int,
    words: list[str],
) -> None:
    """The worst of the runs; the list at the end says which it was."""
    assert run_night(entries[:2], 8, Runs(*codes)) == code
    ended = capsys.readouterr().out.partition("== the night\n")[2].splitlines()
    assert [line.partition(" night:")[0].strip() for line in ended] == words


def test_nothing_could_run(
    entries: list[tuple[str, Entry]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A night of skipped entries alone is no success."""
    runs = Runs()
    assert run_night(entries[3:], 4, runs) == 2
    assert runs.asked == []
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "expected an entry that 4 GPUs are enough for, found none of 1."


def test_broken_driver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A machine whose driver does not answer does not spend the night on the CPU."""

    def broken(environment: object) -> tuple[str, ...]:
        raise UsageError("expected the machine's GPUs, found status 9.")

    monkeypatch.setattr(gpu_night, "visible_gpus", broken)
    assert gpu_night.main(["short"]) == 2
    assert capsys.readouterr().err == "expected the machine's GPUs, found status 9.\n"


@pytest.mark.parametrize("promised", ["3", "many"])
def test_fewer_than_promised(monkeypatch: pytest.MonkeyPatch, promised: str) -> None:
    """Nor does a job that was to get GPUs and got fewer; more are welcome."""
    monkeypatch.setattr(gpu_night, "visible_gpus", lambda environment: ("0", "1"))
    assert gpu_night.gpus_of_the_night({}) == 2
    assert gpu_night.gpus_of_the_night({"NUM_GPUS": "1"}) == 2
    with pytest.raises(UsageError) as caught:
        gpu_night.gpus_of_the_night({"NUM_GPUS": promised})
    assert str(caught.value) == (
        f"NUM_GPUS: expected as many GPUs as the job was promised, {promised}, found 2. "
        "See what nvidia-smi -L lists, or unset it to run on what is there."
    )


def test_chosen() -> None:
    """Suites and entries by name; a name that is none lists the suites."""
    known = suites()
    assert [name for name, _ in chosen(["ipc:1", "short"], known)] == [
        "ipc:1",
        "short:0",
        "short:1",
    ]
    assert len(chosen([], known)) == sum(map(len, known.values()))
    with pytest.raises(UsageError) as caught:
        chosen(["long"], known)
    assert str(caught.value) == (
        "expected a suite of short, nccl, ipc, or an entry such as short:0, found long."
    )
