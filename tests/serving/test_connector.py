"""What the scheduler's side of the connector keeps of requests, and when it lets go."""

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-serve")

from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from recurtrace.serving.connector import ComputedLoops, DepthConnector


@pytest.fixture
def connector(served):
    def make(loops):
        arguments = EngineArgs(
            model=str(served().folder), hf_overrides={"loops": loops, "max_loops": 4}, dtype="float32"
        )
        return DepthConnector(arguments.create_engine_config(), KVConnectorRole.SCHEDULER, None)

    return make


def request(name, loops=None, salt=None):
    hashed = get_hash_fn_by_name("sha256")
    init_none_hash(hashed)
    return Request(
        request_id=name,
        prompt_token_ids=list(range(3, 67)),
        sampling_params=SamplingParams(max_tokens=4, extra_args=None if loops is None else {"loops": loops}),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(32, hashed),
    )


def test_a_prefix_is_one_of_its_depth(connector):
    """Whatever a caller salts with, requests of different depth have no block in common."""
    side = connector(2)
    asked = [request("a"), request("b", 2), request("c", 3), request("d", salt=" loops=3"), request("e", 3, " loops=3")]
    for one in asked:
        side.on_new_request(one)
    blocks = [tuple(one.block_hashes) for one in asked]
    assert blocks[0] == blocks[1]
    assert len(set(blocks)) == 4
    assert all(len(one) == 2 for one in blocks)


@pytest.mark.parametrize("loops", [0, 99, "deep", 2.5, [1], "adaptive"])
def test_nothing_fails_behind_the_front_end(connector, loops):
    for side in (connector(2), connector("adaptive")):
        side.on_new_request(request("a", loops))
        assert side.depth("a") in (None, 1, 2, 4)


def test_requests_are_let_go(connector):
    side = connector("adaptive")
    for name in ("begun", "queued", "aborted"):
        side.on_new_request(request(name))
    side._block |= {"begun": 7, "aborted": 8}
    assert side.request_finished(request("aborted"), [8]) == (False, None)  # while its prompt was being read
    side.learn(ComputedLoops({"begun": 3, "aborted": 2}, tokens=128, token_loops=320))
    assert side.depth("begun") == 3
    assert side.request_finished(request("begun"), [7]) == (False, {"loops": 3})
    assert side.request_finished(request("queued"), []) == (False, None)
    assert (side._asked, side._block, side._depths) == ({}, {}, {})
    stats = side.get_kv_connector_stats()
    assert stats.data == {"request_loops": [3], "token_loops": 320, "token_loops_saved": 128 * 4 - 320}
    assert side.get_kv_connector_stats() is None
