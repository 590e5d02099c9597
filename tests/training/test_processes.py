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
DDP = ("--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")


def free_port() -> str:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def command(recipe, file: Path, *launch: str) -> list[str]:
    file.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)))
    train = ["-m", "recurtrace", "train", str(file)]
    if not launch:
        return [sys.executable, *train]
    return [str(ACCELERATE), "launch", *launch, "--main_process_port", free_port(), *train]


def run(arguments: list[str]) -> str:
    finished = subprocess.run(
        arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=400
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-6000:]
    return finished.stdout


def weights(recipe) -> dict[str, torch.Tensor]:
    return load_file(recipe.out / "model" / "recurtrace.safetensors")


def losses(recipe) -> list[float]:
    log = json.loads((recipe.out / "history.json").read_text())["log_history"]
    return [entry["loss"] for entry in log if "loss" in entry]


def test_two_processes_give_the_result_of_one(recipe, tmp_path):
    one, two = recipe("one", micro_batch_size=4), recipe("two", micro_batch_size=2)
    run(command(one, tmp_path / "one.yaml"))
    run(command(two, tmp_path / "two.yaml", *DDP))
    torch.testing.assert_close(losses(one), losses(two), atol=1e-4, rtol=1e-4)
    expected = weights(one)
    for name, tensor in weights(two).items():
        torch.testing.assert_close(tensor, expected[name], atol=2e-4, rtol=1e-3)
    assert json.loads((two.out / "budget.json").read_text())["processes"] == 2


def test_two_processes_killed_and_resumed(recipe, tmp_path):
    whole = recipe("whole", micro_batch_size=2)
    run(command(whole, tmp_path / "whole.yaml", *DDP))
    killed = recipe("killed", micro_batch_size=2)
    arguments = command(killed, tmp_path / "killed.yaml", *DDP)
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True
        )
        while process.poll() is None and not (killed.out / "checkpoint-2").is_dir():
            time.sleep(0.05)
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run(command(killed, tmp_path / "killed.yaml", *DDP))
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(killed).items())


@pytest.mark.parametrize("name", ["one-gpu", "zero2-8gpu", "fsdp2-8gpu"])
def test_the_shipped_accelerate_configs_are_valid(request, name):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(request.config.rootpath / "recipes" / "accelerate" / f"{name}.yaml"))
    assert config.num_processes == (1 if name == "one-gpu" else 8)
