"""What vLLM loads: the entry point `vllm.general_plugins`, called in each of its processes."""


def register() -> None:
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import recurtrace.model  # noqa: F401 (its config becomes known to AutoConfig)
    from recurtrace.serving.settings import LoopedModelSettings

    ModelRegistry.register_model("RecurTraceForCausalLM", "recurtrace.serving.looped_model:LoopedModel")
    MODELS_CONFIG_MAP["RecurTraceForCausalLM"] = LoopedModelSettings
