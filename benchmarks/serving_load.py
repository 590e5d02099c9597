"""Hundreds of requests at a running server, some of them cancelled, malformed or too long; then: is it still well?

    recurtrace serve MODEL --port 8000 &
    python -m benchmarks.serving_load --url http://127.0.0.1:8000 --requests 500 --in-flight 32

Checked at the end: every answer is the one its prompt gets when it is asked alone (so that no request got another's
tokens), at the depth it asked for; every malformed request was told so; the server answers, holds no request and no
K/V, and its memory is where it was after the first round.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

from recurtrace.errors import RecurTraceError, told

NEAR = 1e-3
"""Two tokens whose log-probabilities are this near may change places with the batch they are computed in."""
KINDS = {"ordinary": 80, "cancelled": 8, "malformed": 8, "over-long": 4}
MALFORMED: list[dict[str, Any]] = [
    {"vllm_xargs": {"loops": 0}},
    {"vllm_xargs": {"loops": 10_000}},
    {"vllm_xargs": {"loops": "deep"}},
    {"max_tokens": -1},
    {"prompt": []},
    {"temperature": "warm"},
]


@dataclass(frozen=True)
class Question:
    prompt: tuple[int, ...]
    loops: int | str | None
    max_tokens: int

    def body(self, model: str, **fields: Any) -> dict[str, Any]:
        asked = {} if self.loops is None else {"vllm_xargs": {"loops": self.loops}}
        return {
            "model": model, "prompt": list(self.prompt), "max_tokens": self.max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "logprobs": 2, **asked, **fields,
        }  # fmt: skip


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    loops: int | None
    gaps: list[float]
    """How far the second-best token was behind, at each place."""


class Load:
    def __init__(
        self, client: httpx.AsyncClient, model: str, longest: int, vocabulary: int, depths: list[Any], seed: int
    ):
        self.client, self.model, self.longest = client, model, longest
        self.chance = random.Random(seed)
        self.questions = [
            Question(
                tuple(self.chance.randrange(3, vocabulary) for _ in range(self.chance.randint(1, longest // 3))),
                self.chance.choice(depths),
                self.chance.randint(1, 24),
            )
            for _ in range(48)
        ]
        self.alone: dict[Question, Answer] = {}
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def ask(self, question: Question, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json=question.body(self.model, **fields), timeout=600)

    async def ask_alone(self) -> None:
        for question in self.questions:
            response = await self.ask(question)
            response.raise_for_status()
            self.alone[question] = answer_of(response.json())

    async def one(self, kind: str) -> None:
        question = self.chance.choice(self.questions)
        if kind == "ordinary":
            self.compare(question, await self.ask(question))
        elif kind == "cancelled":
            try:
                await asyncio.wait_for(self.ask(question, max_tokens=self.longest // 2), self.chance.uniform(0, 0.5))
                self.outcomes["cancelled, too late"] += 1
            except (TimeoutError, httpx.TimeoutException):
                self.outcomes["cancelled"] += 1
        else:
            fields = self.chance.choice(MALFORMED) if kind == "malformed" else {"prompt": [5] * (self.longest + 50)}
            response = await self.ask(question, **fields)
            self.outcomes[f"{kind}, answered {response.status_code}"] += 1
            if not 400 <= response.status_code < 500:
                self.wrong.append(f"{kind} {json.dumps(fields)[:60]}: {response.status_code} {response.text[:200]}")

    def compare(self, question: Question, response: httpx.Response) -> None:
        if response.status_code != 200:
            self.wrong.append(f"an ordinary request got {response.status_code}: {response.text[:200]}")
            return
        got, want = answer_of(response.json()), self.alone[question]
        if (isinstance(question.loops, int) and got.loops != question.loops) or got.loops != want.loops:
            self.wrong.append(f"asked for {question.loops} loops, got {got.loops}, alone {want.loops}")
        at = next((i for i, (a, b) in enumerate(zip(got.tokens, want.tokens, strict=True)) if a != b), None)
        if at is None:
            self.outcomes["as alone"] += 1
        elif want.gaps[at] < NEAR:
            self.outcomes["as alone up to a tie"] += 1
        else:
            self.wrong.append(f"other tokens than alone from place {at}, where the gap was {want.gaps[at]:.4f}")

    async def run(self, requests: int, in_flight: int) -> None:
        places = asyncio.Semaphore(in_flight)

        async def placed(kind: str) -> None:
            async with places:
                await self.one(kind)

        kinds = self.chance.choices(list(KINDS), list(KINDS.values()), k=requests)
        await asyncio.gather(*(placed(kind) for kind in kinds))

    async def idle(self) -> dict[str, float]:
        """vLLM's gauges once it holds nothing, or after ten seconds."""
        for _ in range(100):
            text = (await self.client.get("/metrics")).text
            gauges = {
                name: value(text, name)
                for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
            }
            if not any(gauges.values()):
                break
            await asyncio.sleep(0.1)
        return gauges


def answer_of(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    tops = [sorted(top.values()) for top in choice["logprobs"]["top_logprobs"]]
    gaps = [top[-1] - top[-2] if len(top) > 1 else float("inf") for top in tops]
    return Answer(choice["token_ids"], (body.get("kv_transfer_params") or {}).get("loops"), gaps)


def value(metrics: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(f"vllm:{name}{{"))


def memory_of(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    import psutil

    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in [root, *root.children(recursive=True)])


async def load(url: str, requests: int, in_flight: int, pid: int | None, seed: int, vocabulary: int) -> int:
    async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=in_flight + 8)) as client:
        served = (await client.get("/v1/models")).json()["data"][0]
        first = await client.post(
            "/v1/completions",
            json={"model": served["id"], "prompt": [5], "max_tokens": 1, "vllm_xargs": {"loops": 10_000}},
        )
        depths: list[Any] = [None, 1, 2]
        if "adaptive" in first.text:  # the server says what it can do
            depths.append("adaptive")
        run = Load(client, served["id"], served["max_model_len"], vocabulary, depths, seed)
        await run.ask_alone()
        await run.run(requests // 5, in_flight)  # the first round takes what is taken once
        await run.idle()
        before = memory_of(pid) if pid else None
        run.outcomes.clear()
        began = time.perf_counter()
        await run.run(requests, in_flight)
        seconds = time.perf_counter() - began
        held = await run.idle()
        await run.ask_alone()
        after = memory_of(pid) if pid else None
    print(f"{requests} requests, {in_flight} in flight, {seconds:.1f} s: {dict(sorted(run.outcomes.items()))}")
    print(f"held afterwards: {held}")
    if before and after:
        print(f"memory: {before / 2**20:.0f} MiB after the first round, {after / 2**20:.0f} MiB at the end")
        if after > before * 1.02:
            run.wrong.append("memory grew by more than a fiftieth")
    if any(held.values()):
        run.wrong.append("the server still holds requests or K/V")
    for line in run.wrong[:10]:
        print("wrong:", line)
    print("all well" if not run.wrong else f"{len(run.wrong)} things wrong")
    return 1 if run.wrong else 0


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    parser.add_argument("--vocabulary", type=int, default=250, help="prompts are made of token ids below this")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    run = load(asked.url, asked.requests, asked.in_flight, asked.pid, asked.seed, asked.vocabulary)
    try:
        sys.exit(asyncio.run(run))
    except httpx.ConnectError as error:
        raise RecurTraceError(f"no server answers at {asked.url}; start one, or give --url.") from error


if __name__ == "__main__":
    main()
