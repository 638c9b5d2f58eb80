"""The client of the workers' agents, against a socket that answers as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vllm_engine.agent_client import AgentClient, AgentError, Agents

LIMIT_S = 5.0
SHORT_S = 0.05


class Agent:
    """Answers each request with the next of its lines; ``None`` is silence, empty a closed line."""

    def __init__(self, path: Path, answers: Sequence[bytes | None]) -> None:
        self.path = path
        self.asked: list[Any] = []
        self.connections = 0
        self._answers = iter(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while line := await reader.readline():
            self.asked.append(json.loads(line))
            answer = next(self._answers)
            if answer == b"":
                break
            if answer is not None:
                writer.write(answer)
        writer.close()


# fmt: off
CASES = [
    # id           first answer             its error
    ("silent",     None,                    "TimeoutError"),
    ("closed",     b"",                     "the agent closed the connection"),
    ("half",       b'{"ok"',                "TimeoutError"),
    ("not-json",   b"what?\n",              "Expecting value: line 1 column 1 (char 0)"),
]
# fmt: on


@pytest.mark.parametrize(
    ("first", "found"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_after_no_answer(tmp_path: Path, first: bytes | None, found: str) -> None:
    """It is an error within the limit, and the next request is not given its late answer."""

    async def run() -> None:
        agent = Agent(tmp_path / "a.sock", [first, b'{"ok": true, "n": 2}\n'])
        async with await asyncio.start_unix_server(agent.serve, agent.path):
            client = AgentClient(agent.path)
            with pytest.raises(AgentError) as caught:
                await client.ask({"cmd": "push", "n": 1}, limit_s=SHORT_S)
            assert str(caught.value) == (
                f"{agent.path}: expected an answer to 'push' within {SHORT_S:g} s, found: {found}. "
                "See whether the worker lives, and the end of its server's log."
            )
            answer = await client.ask({"cmd": "disarm"}, limit_s=LIMIT_S)
            assert answer == {"ok": True, "n": 2}
            client.close()
            assert agent.connections == 2

    asyncio.run(run())


def test_a_refusal(tmp_path: Path) -> None:
    """What the agent says is in the error, and the connection is kept."""

    async def run() -> None:
        refusal = b'{"ok": false, "error": "KeyError: n"}\n'
        agent = Agent(tmp_path / "a.sock", [refusal, b'{"ok": true}\n'])
        async with await asyncio.start_unix_server(agent.serve, agent.path):
            client = AgentClient(agent.path)
            with pytest.raises(AgentError) as caught:
                await client.ask({"cmd": "push"}, limit_s=LIMIT_S)
            assert str(caught.value) == (
                f"{agent.path}: expected 'push' to be done, found: KeyError: n. "
                "Compare it with the agent's protocol."
            )
            await client.ask({"cmd": "push", "n": 1}, limit_s=LIMIT_S)
            client.close()
            assert agent.connections == 1

    asyncio.run(run())


def test_no_agent(tmp_path: Path) -> None:
    """A worker that has gone has no socket, or one that nobody listens on."""
    client = AgentClient(tmp_path / "gone.sock")
    with pytest.raises(AgentError, match="No such file"):
        asyncio.run(client.ask({"cmd": "state"}, limit_s=LIMIT_S))


def test_requests_wait_for_each_other(tmp_path: Path) -> None:
    """Two callers at once get an answer each, in the order in which they asked."""

    async def run() -> None:
        agent = Agent(tmp_path / "a.sock", [b'{"n": 0}\n', b'{"n": 1}\n'])
        async with await asyncio.start_unix_server(agent.serve, agent.path):
            client = AgentClient(agent.path)
            asked = [client.ask({"cmd": "state", "n": n}, limit_s=LIMIT_S) for n in range(2)]
            assert await asyncio.gather(*asked) == [{"n": 0}, {"n": 1}]
            client.close()
        assert [asked["n"] for asked in agent.asked] == [0, 1]

    asyncio.run(run())


def test_all_agents(tmp_path: Path) -> None:
    """Each is asked although another is mute; its state is then missing, a command is an error."""

    async def run() -> None:
        mute = Agent(tmp_path / "0.sock", [None, None])
        well = Agent(tmp_path / "1.sock", [b'{"rank": 1}\n', b'{"ok": true}\n'])
        async with (
            await asyncio.start_unix_server(mute.serve, mute.path),
            await asyncio.start_unix_server(well.serve, well.path),
        ):
            agents = Agents([mute.path, well.path])
            assert await agents.states(limit_s=SHORT_S) == [None, {"rank": 1}]
            with pytest.raises(AgentError, match=r"0\.sock: expected an answer to 'disarm'"):
                await agents.tell({"cmd": "disarm"}, limit_s=SHORT_S)
            agents.close()
        assert [asked["cmd"] for asked in well.asked] == ["state", "disarm"]

    asyncio.run(run())
