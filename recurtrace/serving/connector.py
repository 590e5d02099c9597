"""How depths travel: vLLM's connector between the scheduler and the workers, used for depths and not for K/V.

With each forward pass the scheduler's side says which requests run and what they asked for; the workers' side keeps
the depths that were decided, for a request's life (a preempted one comes back with it), and says what it decided and
computed. The scheduler's side returns a request's depth to its caller (`kv_transfer_params`) and counts for Prometheus.

A request is known by its first K/V block. Requests that share one (prefix caching) share their depth too, since
depth is part of what a prefix is looked up by.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from recurtrace.serving.depths import ServedDepths


@dataclass
class ScheduledRequests(KVConnectorMetadata):
    """Scheduler → workers: the requests of a forward pass."""

    by_block: dict[int, tuple[str, int | None]]
    """First K/V block → request, and the depth it is to have; None: the head decides."""
    tokens: int
    finished: set[str]


@dataclass
class ComputedLoops(KVConnectorWorkerMetadata):
    """Workers → scheduler: what a forward pass decided and computed."""

    decided: dict[str, int]
    tokens: int
    token_loops: int

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ComputedLoops":
        return self  # tensor-parallel workers all do the same


class DepthConnector(KVConnectorBase_V1):
    requires_kv_delivery = False

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        self.served = ServedDepths.of(vllm_config.model_config.hf_config)
        self._salted = vllm_config.cache_config.enable_prefix_caching
        self._asked: dict[str, int | None] = {}  # scheduler: live requests
        self._block: dict[str, int] = {}  # scheduler: first K/V block of those that hold any
        self._depths: dict[str, int] = {}  # both: decided
        self._computed: ComputedLoops | None = None  # worker: this pass's
        self._stats = LoopStats()  # scheduler: since they were last taken

    # The workers' side.

    def depth_of(self, block: int) -> int | None:
        """Depth of the request whose first K/V block this is; None: still to be decided."""
        if self._connector_metadata is None:  # a batch that vLLM made up to warm up
            return self.served.maximum
        request, depth = self._connector_metadata.by_block[block]
        return self._depths.get(request) if depth is None else depth

    def report(self, decided: dict[int, int], tokens: int, token_loops: int) -> None:
        """What a pass decided, by first K/V block, and computed."""
        if self._connector_metadata is None:
            return
        by_request = {self._connector_metadata.by_block[block][0]: depth for block, depth in decided.items()}
        self._depths |= by_request
        self._computed = ComputedLoops(by_request, tokens, token_loops)

    def all_at(self, depth: int) -> bool:
        """Whether every request of this pass runs at this depth."""
        now = self._connector_metadata
        return now is None or all(asked == depth for _, asked in now.by_block.values())

    def report_all_at(self, depth: int) -> None:
        if self._connector_metadata is not None:
            tokens = self._connector_metadata.tokens
            self.report({}, tokens, tokens * depth)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        for request in connector_metadata.finished:  # type: ignore[attr-defined]
            self._depths.pop(request, None)

    def build_connector_worker_meta(self) -> ComputedLoops | None:
        computed, self._computed = self._computed, None
        return computed

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        loops = ((request.sampling_params and request.sampling_params.extra_args) or {}).get("loops")
        if type(loops) is int:  # checked where it came in; not by every front end of vLLM's, and nothing may fail here
            loops = max(1, min(loops, self.served.maximum))
        elif loops != "adaptive" or not self.served.adaptive:
            loops = None
        depth = self._asked[request.request_id] = self.served.asked(loops)
        if self._salted and (depth != self.served.default or request.cache_salt):
            # Keys and values behind the block depend on depth, so a prefix of another depth is another prefix.
            request.cache_salt = f"{request.cache_salt or ''} loops={depth}"
            request.block_hashes.clear()
            request.update_block_hashes()

    def build_connector_meta(self, scheduler_output: Any) -> ScheduledRequests:
        for new in scheduler_output.scheduled_new_reqs:
            self._block[new.req_id] = new.block_ids[0][0]
        known = scheduler_output.scheduled_cached_reqs
        for request, blocks in zip(known.req_ids, known.new_block_ids, strict=True):
            if request in known.resumed_req_ids:
                self._block[request] = blocks[0][0]
        by_block = {
            self._block[request]: (request, self._asked[request]) for request in scheduler_output.num_scheduled_tokens
        }
        tokens = scheduler_output.total_num_scheduled_tokens
        return ScheduledRequests(by_block, tokens, set(scheduler_output.finished_req_ids))

    def learn(self, computed: ComputedLoops | None) -> None:
        """What the workers said of a pass."""
        if computed is None:
            return
        self._depths |= {name: depth for name, depth in computed.decided.items() if name in self._asked}
        self._stats.add_pass(computed, self.served.maximum)

    def depth(self, request: str) -> int | None:
        """Depth of a live request, once it is known."""
        return self._depths.get(request, self._asked.get(request))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        name = request.request_id
        depth, began = self.depth(name), name in self._block
        for known in (self._asked, self._block, self._depths):
            known.pop(name, None)
        if depth is None or not began:
            return False, None
        self._stats.data["request_loops"].append(depth)
        return False, {"loops": depth}

    def get_kv_connector_stats(self) -> "LoopStats | None":
        stats, self._stats = self._stats, LoopStats()
        return None if stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> "LoopStats":
        return LoopStats() if data is None else LoopStats(data=data)

    @classmethod
    def build_prom_metrics(cls, *args: Any) -> "LoopMetrics":
        return LoopMetrics(*args)

    # No K/V is moved.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def _nothing() -> dict[str, Any]:
    return {"request_loops": [], "token_loops": 0, "token_loops_saved": 0}


@dataclass
class LoopStats(KVConnectorStats):
    """Depths of the requests that ended, and token-loops computed and saved, since the last report."""

    data: dict[str, Any] = field(default_factory=_nothing)

    def add_pass(self, computed: ComputedLoops, maximum: int) -> None:
        self.data["token_loops"] += computed.token_loops
        self.data["token_loops_saved"] += computed.tokens * maximum - computed.token_loops

    def aggregate(self, other: KVConnectorStats) -> "LoopStats":
        return LoopStats(data={name: value + other.data[name] for name, value in self.data.items()})

    def reset(self) -> None:
        self.data = _nothing()

    def is_empty(self) -> bool:
        return self.data == _nothing()

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log."""
        depths = self.data["request_loops"]
        mean = {"mean loops of a request": round(sum(depths) / len(depths), 2)} if depths else {}
        return {**mean, "token-loops": self.data["token_loops"], "token-loops saved": self.data["token_loops_saved"]}


class LoopMetrics(KVConnectorPromMetrics):
    """The same on vLLM's /metrics."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, labels)
        maximum = ServedDepths.of(vllm_config.model_config.hf_config).maximum
        self._request_loops = self._histogram_cls(
            name="vllm:recurtrace_request_loops",
            documentation="Loops that each finished request ran.",
            buckets=list(range(1, maximum + 1)),
            labelnames=labelnames,
        )
        self._counters = {
            name: self._counter_cls(name=f"vllm:recurtrace_{name}", documentation=text, labelnames=labelnames)
            for name, text in {
                "token_loops": "Loops computed, summed over tokens.",
                "token_loops_saved": "Loops that halting saved against the server's maximum, summed over tokens.",
            }.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels: Iterable[object] = self.per_engine_labelvalues[engine_idx]
        histogram: Histogram = self._request_loops.labels(*labels)
        for depth in transfer_stats_data["request_loops"]:
            histogram.observe(depth)
        for name, counter in self._counters.items():
            own: Counter = counter.labels(*labels)
            own.inc(transfer_stats_data[name])
