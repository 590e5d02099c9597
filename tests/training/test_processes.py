"""More than one process: through `accelerate launch` on two CPU processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

ACCELERATE = Path(sys.executable).with_name("accelerate")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
RECIPES = Path(__file__).parents[2] / "recurtrace" / "recipes" / "accelerate"
ON_TWO_CPUS = {"num_processes": 2, "use_cpu": True, "mixed_precision": "no"}


def free_port() -> str:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def command(recipe, tmp_path: Path, config: str | None = None) -> list[str]:
    """The recipe's command line, alone or launched with a shipped config brought to two CPU processes."""
    file = tmp_path / f"{recipe.out.name}.yaml"
    file.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)))
    train = ["-m", "recurtrace", "train", str(file)]
    if config is None:
        return [sys.executable, *train]
    launch = tmp_path / f"{config}.yaml"
    launch.write_text(yaml.safe_dump(yaml.safe_load((RECIPES / f"{config}.yaml").read_text()) | ON_TWO_CPUS))
    return [str(ACCELERATE), "launch", "--config_file", str(launch), "--main_process_port", free_port(), *train]


def run(arguments: list[str]) -> str:
    finished = subprocess.run(arguments, capture_output=True, text=True, env=ENVIRONMENT, timeout=400)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-6000:]
    return finished.stdout


def weights(recipe) -> dict[str, torch.Tensor]:
    (file,) = (recipe.out / "model").glob("*.safetensors")
    return load_file(file)


def losses(recipe) -> list[float]:
    log = json.loads((recipe.out / "history.json").read_text())["log_history"]
    return [entry["loss"] for entry in log if "loss" in entry]


LOOP = {"method": "loop", "learning_rate": 1e-2}
BLOCK = {**LOOP, "train_block": True, "block_learning_rate": 1e-3}
FULL = {"method": "full", "learning_rate": 1e-3}
ADAPTER = {"method": "adapter", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        pytest.param("two-cpu", LOOP, id="loop"),
        pytest.param("zero2-8gpu", LOOP, id="loop-zero2", marks=pytest.mark.slow),
        pytest.param("two-cpu", BLOCK, id="block", marks=pytest.mark.slow),
        pytest.param("zero2-8gpu", BLOCK, id="block-zero2", marks=pytest.mark.slow),
        pytest.param("two-cpu", FULL, id="full", marks=pytest.mark.slow),
        pytest.param("zero2-8gpu", FULL, id="full-zero2", marks=pytest.mark.slow),
        pytest.param("two-cpu", ADAPTER, id="adapter", marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_result_of_one(recipe, tmp_path, config, fields):
    """Data-parallel, and with DeepSpeed's ZeRO-2: depths in lock step, one gradient from two halves of a batch."""
    one, two = (recipe(name, micro_batch_size=size, **fields) for name, size in (("one", 4), ("two", 2)))
    run(command(one, tmp_path))
    run(command(two, tmp_path, config))
    torch.testing.assert_close(losses(one), losses(two), atol=1e-4, rtol=1e-4)
    expected = weights(one)
    for name, tensor in weights(two).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=1e-3)
    assert json.loads((two.out / "budget.json").read_text())["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("config", ["two-cpu", "zero2-8gpu"])
def test_two_processes_killed_and_resumed(recipe, tmp_path, config):
    whole, killed = recipe("whole", micro_batch_size=2), recipe("killed", micro_batch_size=2)
    run(command(whole, tmp_path, config))
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command(killed, tmp_path, config), stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True
        )
        while process.poll() is None and not (killed.out / "checkpoint-2").is_dir():
            time.sleep(0.02)
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run(command(killed, tmp_path, config))
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(killed).items())


FSDP2 = """
import sys, torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from recurtrace.model.labelled_loss import accept_return_logits
from recurtrace.training.methods import freeze_for_stage_1
from tests.conftest import tiny_base, tiny_looped, tokens

torch.distributed.init_process_group("gloo")
rank, mesh = torch.distributed.get_rank(), init_device_mesh("cpu", (2,))
ids = tokens(2, 8)[rank : rank + 1]
for loops in (1, 3):
    model, alone = tiny_looped().train(), tiny_looped().train()
    for one in (model, alone):
        freeze_for_stage_1(one)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(ids, labels=ids, loops=loops, return_logits=False).loss.backward()
    both = tokens(2, 8)
    (sum(alone(row[None], labels=row[None], loops=loops).loss for row in both) / 2).backward()
    expected = dict(alone.loop.named_parameters())
    for name, parameter in model.loop.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name].grad, atol=1e-5, rtol=1e-4)

model, alone = tiny_base().train(), tiny_base().train()
accept_return_logits(model)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model(ids, labels=ids, return_logits=False).loss.backward()
(sum(alone(row[None], labels=row[None]).loss for row in tokens(2, 8)) / 2).backward()
for name, parameter in model.named_parameters():
    torch.testing.assert_close(parameter.grad.full_tensor(), alone.get_parameter(name).grad, atol=1e-5, rtol=1e-4)
print("same gradients")
"""


def test_fsdp2_gives_the_same_gradients(tmp_path):
    """On the CPU accelerate turns FSDP into plain data parallelism, so torch's own is put on the model.

    Looped, and a base with everything trained; sharded without logits against unsharded with them.
    """
    script = tmp_path / "fsdp2.py"
    script.write_text(FSDP2)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    environment = ENVIRONMENT | {"PYTHONPATH": str(Path(__file__).parents[2])}
    finished = subprocess.run([*launcher, str(script)], capture_output=True, text=True, env=environment, timeout=200)
    assert finished.returncode == 0, finished.stderr[-5000:]
    assert finished.stdout.count("same gradients") == 2


@pytest.mark.parametrize("name", ["one-gpu", "zero2-8gpu", "fsdp2-8gpu"])
def test_the_shipped_accelerate_configs_are_valid(name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(RECIPES / f"{name}.yaml"))
    assert config.num_processes == (1 if name == "one-gpu" else 8)
