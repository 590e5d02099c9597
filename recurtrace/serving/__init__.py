"""RecurTrace models on vLLM: an out-of-tree plugin, nothing of vLLM changed.

Depth belongs to a request, and three of vLLM's own extension points carry it:

    requests.py     a request's `loops` is checked where the request comes in
    connector.py    depths go between the scheduler and the workers, and out to the caller and to Prometheus
    scheduler.py    the scheduler learns a depth in time, and says it with every output
    forward_pass.py whose tokens are whose in one, and who goes on to the next loop
    looped_model.py the base as vLLM has it, its block repeated
    settings.py     what a looped model can and cannot have; chosen or refused before anything is loaded
    plugin.py       makes all of it known to vLLM
    depths.py       what a server offers and a request may ask for
    checkpoint.py   a folder, checked before vLLM reads it
    launch.py       `recurtrace serve`
    offline.py      `recurtrace evaluate` and `sweep` with --engine vllm

Only the last four can be imported without vLLM.
"""
