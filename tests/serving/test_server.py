"""The OpenAI server, started as a user starts it: answers, metrics, load, a clean end."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-serve")

import httpx
import psutil

from tests.serving.conftest import prompts

BIN = Path(sys.executable).parent


class Server:
    def __init__(self, *command: str):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        options = ["--port", str(port), "--dtype", "float32", "--max-model-len", "256", "--block-size", "32"]
        options += ["--num-gpu-blocks-override", "96"]  # few, so that all are in memory once each has been used
        # oneDNN keeps what it made for each shape it has seen, up to 1,024 of them; here few, to see what else grows.
        environment = {**os.environ, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
        self.process = subprocess.Popen(
            [*command, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment,
        )
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = ""
        for _ in range(300):
            self.read()
            assert self.process.poll() is None, self.output[-4000:]
            try:
                httpx.get(f"{self.url}/health").raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(1)
        raise AssertionError(self.output[-4000:])

    def read(self) -> str:
        while piece := self.process.stdout.read(65536):
            self.output += piece
        return self.output

    def complete(self, prompt: list[int], **fields) -> httpx.Response:
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        return httpx.post(f"{self.url}/v1/completions", json={**body, "return_token_ids": True, **fields}, timeout=120)

    @property
    def model(self) -> str:
        return httpx.get(f"{self.url}/v1/models").json()["data"][0]["id"]

    def stop(self) -> int:
        """SIGTERM; returns how many of its processes are left."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        _, alive = psutil.wait_procs(below, timeout=10)
        return len(alive)


@pytest.fixture(scope="module")
def adaptive(served):
    server = Server(str(BIN / "recurtrace"), "serve", str(served().folder))
    yield server
    if server.process.poll() is None:
        os.killpg(server.process.pid, signal.SIGKILL)


def test_answers_say_their_depth(served, adaptive):
    asked = prompts(12, seed=5)
    want, depths = served().generate(asked, "adaptive", new_tokens=8)
    for prompt, tokens, depth in zip(asked, want, depths, strict=True):
        answer = adaptive.complete(prompt).json()
        assert answer["kv_transfer_params"] == {"loops": depth}
        assert answer["choices"][0]["token_ids"] == tokens
    assert "a depth of 1 to 6; keys and values for 6 loops take 3.50× the base's memory" in adaptive.read()


def test_a_request_chooses_its_depth(served, adaptive):
    prompt = prompts(1, seed=6)[0]
    answer = adaptive.complete(prompt, vllm_xargs={"loops": 4}).json()
    assert answer["kv_transfer_params"] == {"loops": 4}
    assert answer["choices"][0]["token_ids"] == served().generate([prompt], 4, new_tokens=8)[0][0]
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": adaptive.model, "messages": messages, "max_tokens": 4, "vllm_xargs": {"loops": 2}}
    chat = httpx.post(f"{adaptive.url}/v1/chat/completions", json=body, timeout=120)
    assert chat.json()["kv_transfer_params"] == {"loops": 2}


@pytest.mark.parametrize("loops", [0, 7, "deep", 2.5])
def test_an_impossible_depth_is_answered_with_a_sentence(adaptive, loops):
    answer = adaptive.complete([5, 6], vllm_xargs={"loops": loops})
    assert answer.status_code == 400
    assert "loops must be a whole number from 1 to this server's maximum of 6" in answer.json()["error"]["message"]


def test_metrics(adaptive):
    text = httpx.get(f"{adaptive.url}/metrics").text
    assert "vllm:recurtrace_request_loops_bucket{" in text
    assert "vllm:recurtrace_token_loops_total{" in text
    assert "vllm:recurtrace_token_loops_saved_total{" in text


def test_load_and_a_clean_end(adaptive):
    """500 requests, 32 in flight, mixed depths, some cancelled, malformed or too long; then SIGTERM."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving_load", "--url", adaptive.url, "--pid", str(adaptive.process.pid)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert adaptive.complete([5, 6]).status_code == 200
    assert adaptive.stop() == 0
    assert adaptive.process.returncode == 0
    assert "Traceback" not in adaptive.read()


def test_vllm_serve_alone_finds_the_plugin(served):
    """`vllm serve DIR`, with the depth as vLLM lets a config be changed."""
    server = Server(str(BIN / "vllm"), "serve", str(served().folder), "--hf-overrides", '{"loops": 2, "max_loops": 3}')
    try:
        prompt = prompts(1, seed=8)[0]
        for loops, fields in ((2, {}), (3, {"vllm_xargs": {"loops": 3}})):
            answer = server.complete(prompt, **fields).json()
            assert answer["kv_transfer_params"] == {"loops": loops}
            assert answer["choices"][0]["token_ids"] == served().generate([prompt], loops, new_tokens=8)[0][0]
    finally:
        server.stop()
