"""The small request load that every engine serves while a scenario runs.

It is what makes wrong weights visible: each token that an engine serves is in the journal with the
weights it came from. A client that gets no answer just waits, as a rollout worker would; one whose
engine is gone asks again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import aiohttp

TOKENS_PER_REQUEST = 4
BETWEEN_REQUESTS_S = 0.05
RETRY_S = 0.1


class RequestLoad:
    """One client an engine, each with one completion under way at a time. An async context."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        self._tasks = [asyncio.create_task(self._ask(i, url)) for i, url in enumerate(self._urls)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _ask(self, engine: int, url: str) -> None:
        for number in itertools.count():
            prompt = [engine + 1, number % 50 + 1]
            body = {
                "prompt": prompt,
                "max_tokens": TOKENS_PER_REQUEST,
                "temperature": 0,  # real engines draw by chance otherwise
                "return_token_ids": True,
            }
            try:
                async with self._client.post(f"{url}/v1/completions", json=body) as response:
                    await response.read()
                await asyncio.sleep(BETWEEN_REQUESTS_S)
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(RETRY_S)
