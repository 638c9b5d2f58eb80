"""The request load: one completion at a time for each engine, whatever the engine does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

import harness.load
from harness.load import TOKENS_PER_REQUEST, RequestLoad

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
LIMIT_S = 5.0


class Engine:
    """Answers request by request what it is given: bytes, nothing, or a closed connection."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self._answers = iter(answers)
        self.bodies: list[dict[str, object]] = []
        self.open = self.most_open = 0
        self.all_asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                answer = next(self._answers, None)
                if answer is None:
                    self.all_asked.set()
                    await reader.read()  # until the client has gone
                    return
                self.open -= 1
                if not answer:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.mark.parametrize(
    "answers",
    [[], [OK, OK], [BUSY, OK], [b"", OK], [b"no HTTP\r\n\r\n", b"", OK]],
    ids=["never", "twice", "refused", "cut", "nonsense"],
)
def test_asks_on(answers: Sequence[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an engine answers, the client asks again, until it is left without an answer."""
    monkeypatch.setattr(harness.load, "BETWEEN_REQUESTS_S", 0.001)
    monkeypatch.setattr(harness.load, "RETRY_S", 0.001)

    async def run() -> None:
        engine = Engine(answers)
        async with await asyncio.start_server(engine.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(LIMIT_S), RequestLoad([f"http://127.0.0.1:{port}"]):
                await engine.all_asked.wait()
        assert len(engine.bodies) == len(answers) + 1
        assert engine.most_open == 1
        for number, body in enumerate(engine.bodies):
            assert body == {
                "prompt": [1, number + 1],
                "max_tokens": TOKENS_PER_REQUEST,
                "temperature": 0,
                "return_token_ids": True,
            }

    asyncio.run(run())


def test_an_engine_that_has_gone() -> None:
    """Nobody listening is no error: the engine may be restarted."""

    async def run() -> None:
        async with RequestLoad(["http://127.0.0.1:1"]):
            await asyncio.sleep(0)

    asyncio.run(run())
