"""What a looped model can and cannot have on vLLM; chosen or refused before anything is loaded."""

import os
from typing import Any

from vllm import envs
from vllm.config import CUDAGraphMode, KVTransferConfig
from vllm.logger import init_logger
from vllm.model_executor.models.config import VerifyAndUpdateConfig
from vllm.platforms import current_platform

from recurtrace.errors import RecurTraceError
from recurtrace.serving.checkpoint import check_checkpoint
from recurtrace.serving.depths import ServedDepths
from recurtrace.serving.requests import RequestDepth

logger = init_logger("vllm.recurtrace")

FAMILIES = ("qwen3", "qwen2", "llama", "mistral")
"""Bases whose layers vLLM has in a shape that can be looped."""
ATTENTION_BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
"""Those that say of each request where its tokens, keys and values are."""


class LoopedModelSettings(VerifyAndUpdateConfig):
    """vLLM calls it with everything a server was started with, before it starts."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        config = vllm_config.model_config.hf_config
        served = RequestDepth.served = ServedDepths.of(config)
        family = config.get_text_config().model_type
        if family not in FAMILIES:
            raise RecurTraceError(f"a {family} base cannot be served on vLLM yet; {', '.join(FAMILIES)} can.")
        _refuse(vllm_config)
        hub = {"revision": vllm_config.model_config.revision, "cache_dir": vllm_config.load_config.download_dir}
        check_checkpoint(vllm_config.model_config.model, config, **hub)
        _choose_compilation(vllm_config, served)
        _carry_depths(vllm_config)
        if served.adaptive:
            _read_prompts_whole(vllm_config)
        at = f"{served.default} loops" if served.default else f"{served.minimum} to {served.maximum} loops, by the head"
        logger.info("RecurTrace: requests run at %s; each may ask for up to %d (`loops`).", at, served.maximum)


def _refuse(vllm_config: Any) -> None:
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise RecurTraceError(
            "a looped model cannot be split into pipeline stages, since its block may cross them; use tensor parallel."
        )
    if vllm_config.speculative_config is not None:
        raise RecurTraceError("speculative decoding does not support loops; leave out --speculative-config.")
    if vllm_config.kv_transfer_config is not None or vllm_config.cache_config.kv_offloading_size is not None:
        raise RecurTraceError(
            "depths travel through vLLM's KV connector, so there can be no other; leave out --kv-transfer-config."
        )
    window = vllm_config.cache_config.sliding_window
    if window is not None and window < vllm_config.model_config.max_model_len:
        raise RecurTraceError(
            f"requests are told apart by their first tokens' keys and values, and a window of {window} drops them; "
            f"pass --max-model-len {window}."
        )
    if vllm_config.scheduler_config.scheduler_cls is not None:
        raise RecurTraceError("a looped model brings its own scheduler class; leave out --scheduler-cls.")


def _choose_compilation(vllm_config: Any, served: ServedDepths) -> None:
    """Passes whose requests all have the server's fixed depth may be compiled; nothing else can, and on the CPU
    nothing must: there inductor reads what vLLM's mutating matmul has yet to write, once a layer comes twice in a
    graph, and the tokens are wrong without an error (VLLM_CPU_CI_ENV traces the graph and leaves inductor out).
    """
    if os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0") == "1":
        raise RecurTraceError("looped models run on vLLM's V1 model runner; unset VLLM_USE_V2_MODEL_RUNNER.")
    why = None
    if served.adaptive:
        why = "requests of adaptive depth leave the batch between loops"
    elif current_platform.is_cpu() and not envs.VLLM_CPU_CI_ENV:
        why = "torch.compile gives wrong tokens for repeated layers on the CPU"
    graphs = vllm_config.compilation_config.cudagraph_mode
    if why is None and (graphs is None or graphs.has_full_cudagraphs()):
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE  # a whole graph would hide the choice
    elif why is not None and not vllm_config.model_config.enforce_eager:
        logger.info("RecurTrace: eager mode, since %s.", why)
        vllm_config.model_config.enforce_eager = True


def _carry_depths(vllm_config: Any) -> None:
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector="DepthConnector", kv_connector_module_path="recurtrace.serving.connector", kv_role="kv_both"
    )
    scheduler = vllm_config.scheduler_config
    scheduler.scheduler_cls = "recurtrace.serving.scheduler.DepthScheduler"
    scheduler.async_scheduling = False  # a pass's depths are read before the next is planned
    scheduler.disable_hybrid_kv_cache_manager = True
    processors = vllm_config.model_config.logits_processors or []
    vllm_config.model_config.logits_processors = [*processors, RequestDepth]


def _read_prompts_whole(vllm_config: Any) -> None:
    """Keys and values behind the block depend on a depth that is chosen from the whole prompt."""
    if vllm_config.cache_config.enable_prefix_caching is not False:
        logger.info("RecurTrace: prefix caching is off, since adaptive depth is chosen from the whole prompt.")
        vllm_config.cache_config.enable_prefix_caching = False
    scheduler = vllm_config.scheduler_config
    if scheduler.enable_chunked_prefill is not False:
        logger.info("RecurTrace: chunked prefill is off, since adaptive depth is chosen from the whole prompt.")
        scheduler.enable_chunked_prefill = False
    scheduler.long_prefill_token_threshold = 0
    longest = vllm_config.model_config.max_model_len
    scheduler.max_num_scheduled_tokens = None
    if scheduler.max_num_batched_tokens < longest:
        logger.info(
            "RecurTrace: a forward pass takes up to %d tokens, so that the longest prompt fits in one.", longest
        )
        scheduler.max_num_batched_tokens = longest
