"""A small stream of greedy completions that the gateway asks for itself, and what it shows.

It is what makes wrong weights visible in a real engine: each token goes into the journal with the
weights that it came from and the label that the engine core showed when it made it.

Which weights may have served which label is judged by ``harness.verdicts.serving`` from the order
of the journal, so this has to get the order of a token and a publication right although both
happen in another process and travel on connections of their own:

* The label of a token is not guessed from when it was asked for or when it came. vLLM's core
  attaches its label to the output of each step, and sets a label, loads weights and steps in one
  thread, one after the other. So a request that waits through a pause, and through a whole push in
  it, carries the label of the step that served it in the end: no false alarm, and none is missed.
* A token whose label the gateway has not seen published came faster than the answer to the
  publication, which is on its way: it is recorded after that.
* A token whose label has been replaced came slower than the answer to the publication. It is
  recorded with its own label; whoever judges it goes by that.
* A token whose log-probabilities are NaN comes without them and without a label. It matches no
  step under any label, so that of the latest publication will do.
* Which step's weights it came from depends on the token alone (`KnownWeights`), and is known
  without a wait, so no other event comes between its arrival and its record.
"""

from __future__ import annotations

import asyncio
import itertools

import aiohttp

from harness.contracts import Recorder
from vllm_engine.engine_view import START_LABEL
from vllm_engine.known_weights import KnownWeights
from vllm_engine.served import Answer, NotANumberError, Served, ServedError, ask

BETWEEN_REQUESTS_S = 0.1  # one takes some 15 ms of a core
RETRY_S = 0.2
PUBLICATION_LIMIT_S = 2.0
NOTHING_KNOWN = Served(tokens=(-1,), logprobs=(), prompt_logprobs=())


class Publications:
    """The labels that were seen published, in order, each recorded in the journal.

    Args:
        record: the run's journal.

    Attributes:
        latest: the label that was published last.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self.latest = START_LABEL
        self._seen = {START_LABEL}
        self._news = asyncio.Event()

    def publish(self, label: str) -> None:
        """The engine has answered that it shows this label now."""
        self._record("version", version=label)
        self.latest = label
        self._seen.add(label)
        self._news.set()

    async def seen(self, label: str, *, limit_s: float) -> bool:
        """Wait until a label has been published; return whether it was, within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                while label not in self._seen:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True


class TokenStream:
    """One request at a time, for as long as the engine lives.

    Args:
        http: without a time-out: a paused engine lets requests wait.
        url: the server's own.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        weights: KnownWeights,
        publications: Publications,
        record: Recorder,
    ) -> None:
        self._http, self._url = http, url
        self._weights, self._publications, self._record = weights, publications, record

    async def run(self) -> None:
        """Ask and record until cancelled. An engine that does not serve is asked again."""
        for number in itertools.count():
            try:
                answer = await ask(self._http, self._url, num_tokens=1)
            except NotANumberError:
                answer = Answer(NOTHING_KNOWN, self._publications.latest)
            except (aiohttp.ClientError, OSError, ServedError):
                await asyncio.sleep(RETRY_S)
                continue
            if answer is not None:
                await self.take(number, answer)
            await asyncio.sleep(BETWEEN_REQUESTS_S)

    async def take(self, number: int, answer: Answer) -> None:
        """Record the token of request ``number``."""
        step = self._weights.step_of(answer.served)
        # A label that nobody published through the gateway is recorded all the same, late.
        await self._publications.seen(answer.label, limit_s=PUBLICATION_LIMIT_S)
        self._record(
            "token",
            request=f"gateway-{number}",
            index=0,
            token=answer.served.tokens[0],
            fingerprint=self._weights.fingerprint(step),
            version=answer.label,
        )
