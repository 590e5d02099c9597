"""vLLM's scheduler, which here learns a request's depth in time and says it with every output.

In time: a request may end with the forward pass that decided its depth (an answer of one token), and vLLM tells its
connector of a pass only after it has told it of the requests that ended with it. With every output: vLLM itself
returns what the connector knows with the last one, but an answer that ends at a stop string ends in the front end.
"""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class DepthScheduler(Scheduler):
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if model_runner_output.kv_connector_output is not None:
            self.connector.learn(model_runner_output.kv_connector_output.kv_connector_worker_meta)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for output in [output for of_client in outputs.values() for output in of_client.outputs]:
            if output.kv_transfer_params is None and (depth := self.connector.depth(output.request_id)) is not None:
                output.kv_transfer_params = {"loops": depth}
        return outputs
