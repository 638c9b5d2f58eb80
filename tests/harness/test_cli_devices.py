"""``run --device cuda``: what it refuses before anything is started, and what a re-run is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cli, parts
from harness.errors import UsageError
from harness.launcher import Launcher

NCCL = """\
proves: It holds.
transport: nccl
expect: {outcome: resumed}
tolerates: nothing is injected
"""
CPU_BUILD = "--device cuda: expected the builds of vLLM and torch for CUDA."
# fmt: off
REFUSED = [
    # id,             options,            GPUs, what is printed
    ("fakes",         [],                 8,
     "--device cuda: expected --engines vllm or both, as fake engines have no GPU, found "
     "as-written. Add it."),
    ("no-gpu",        ["--engines", "vllm"], 0,
     "expected scenarios that --engines vllm --device cuda can run, found none of 1. one@vllm: "
     "expected 2 GPUs (one for each worker and one for the sender), found 0. Take a machine with "
     "more, or run it on the CPU."),
    ("build-for-cpu", ["--engines", "vllm"], 2, CPU_BUILD),
]
# fmt: on


@pytest.mark.parametrize(
    ("options", "gpus", "printed"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    gpus: int,
    printed: str,
) -> None:
    """A run on GPUs never becomes one on the CPU: it exits 2 and says what is missing."""

    async def start(self: Launcher) -> Launcher:
        raise AssertionError("a process was about to be started")

    def require_cuda() -> None:
        raise UsageError(CPU_BUILD)

    monkeypatch.setattr(Launcher, "__aenter__", start)
    monkeypatch.setattr(cli, "visible_gpus", lambda: tuple(map(str, range(gpus))))
    monkeypatch.setattr(parts, "require_cuda", require_cuda)
    (tmp_path / "one.yaml").write_text(NCCL)
    out = tmp_path / "out"
    words = ["run", str(tmp_path / "one.yaml"), "--device", "cuda", "--out", str(out)]
    assert cli.main([*words, *options]) == 2
    assert capsys.readouterr().err == f"{printed}\n"
    assert not out.exists()


def test_what_runs(tmp_path: Path) -> None:
    """On both, the fakes run beside the real engines that there are GPUs for."""
    (tmp_path / "one.yaml").write_text(NCCL)
    words = [str(tmp_path / "one.yaml"), "--engines", "both", "--device", "cuda"]
    for gpus, names, left_out in ((1, ["one"], ["one@vllm"]), (2, ["one", "one@vllm"], [])):
        found = cli.would_run(words, gpus)
        assert [scenario.name.rpartition("/")[2] for scenario in found[0]] == names
        assert [each.name.rpartition("/")[2] for each in found[1]] == left_out


def test_the_command_to_run_one_again() -> None:
    """It names the device, unless that is the default."""
    options = cli._parser().parse_args(["run", "x", "--engines", "vllm", "--device", "cuda"])
    assert cli._again(options) == ["--engines", "vllm", "--device", "cuda"]
    assert cli._again(cli._parser().parse_args(["run", "x", "--device", "cpu"])) == []
