"""vLLM's scheduler, which here learns a request's depth before the request may end.

A request may end with the step that decided its depth (an answer of one token); vLLM tells its connector of a step
only after it has told it of the requests that ended with it.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class DepthScheduler(Scheduler):
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if model_runner_output.kv_connector_output is not None:
            self.connector.learn(model_runner_output.kv_connector_output.kv_connector_worker_meta)
        return super().update_from_output(scheduler_output, model_runner_output)
