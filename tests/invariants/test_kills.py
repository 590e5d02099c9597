"""kill -9 at random moments, then the same command again: the files end as if nothing had happened.

On the embedded model; commands are forked from one process that has imported everything, since imports would take most
of the time.
"""

import json
import multiprocessing
import os
import random
import shutil
import sys
import time

import pytest
import yaml

from tests.test_pipeline import result_files

KILLS = int(os.environ.get("RECURTRACE_KILLS", "2"))
MODULES = ["recurtrace.cli", "recurtrace.pipeline", "recurtrace.training.train", "recurtrace.halting.sweep",
           "recurtrace.evaluation.evaluate", "recurtrace.halting.distill", "recurtrace.evaluation.analysis",
           "recurtrace.evaluation.runtime", "recurtrace.report.render", "recurtrace.model.heads",
           "transformers.models.qwen3.modeling_qwen3", __name__]  # fmt: skip
SMALL = {"steps": 6, "batch_size": 8, "micro_batch_size": 4, "max_length": 256, "precision": "fp32", "save_every": 1,
         "evaluate_every": 3, "evaluate_depths": [1, 2], "evaluate_on": 20}  # fmt: skip


def command(folder, arguments):
    """In a process of its own."""
    import torch

    from recurtrace.cli import main
    from recurtrace.halting import sweep

    sweep.SAVE_EVERY = 0.1
    os.chdir(folder)
    torch.set_num_threads(1)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    sys.argv = ["recurtrace", *map(str, arguments)]
    main()


@pytest.fixture(scope="module")
def start():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)

    def begin(folder, arguments):
        folder.mkdir(exist_ok=True)
        process = context.Process(target=command, args=(folder, arguments))
        process.start()
        return process

    return begin


@pytest.fixture(scope="module")
def commands(start, tmp_path_factory):
    place = tmp_path_factory.mktemp("kills")
    tasks = [{"task": task, "count": 200} for task in ("where_thing", "who_has", "where_person")]
    mixture = {"sources": tasks, "audit": ["where_thing"], "heldout": 20}
    train = {
        "model": "embedded/base",
        "data": str(place / "made/out"),
        "out": "out",
        "loop": {"loop_start": 1},
        **SMALL,
    }
    study = {"base": "embedded/base", "out": "out", "mixture": str(place / "mixture.yaml"), "depth": 6,
             "train": {"loop": {"loop_start": 1}, **SMALL}, "head_examples": 24, "heldout": 24, "test": 12,
             "heads": ["oracle"], "loops": [1, 2, "adaptive"], "batch_size": 4, "max_length": 256}  # fmt: skip
    for name, fields in (("mixture", mixture), ("train", train), ("study", study)):
        (place / f"{name}.yaml").write_text(yaml.safe_dump(fields))
    data = ["data", "build", "--recipe", place / "mixture.yaml", "--out", "out"]
    made = start(place / "made", data)
    made.join()
    assert made.exitcode == 0, (place / "made/log").read_text()
    on_data = ["embedded/loop", "--data", place / "made/out", "--batch-size", 4, "--max-length", 256, "--out", "out"]
    return place, {
        "data build": data,
        "train": ["train", place / "train.yaml"],
        "sweep": ["sweep", *on_data, "--count", 48, "--depths", "1-6"],
        "evaluate": ["evaluate", *on_data, "--split", "heldout", "--count", 48, "--loops", "1,2,4,adaptive"],
        "run": ["run", place / "study.yaml"],
    }


def results(name, folder):
    """What must be the same: everything, except for what times are in."""
    out = folder / "out"
    if name == "run":
        return result_files(out)
    if name == "train":
        history = json.loads((out / "history.json").read_text())["log_history"]
        losses = [(entry["step"], entry.get("loss"), entry.get("eval_nll_2")) for entry in history]
        return {file.name: file.read_bytes() for file in (out / "model").iterdir()} | {"losses": losses}
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data build", "train", "sweep", "evaluate", "run"])
def test_kills_and_two_at_once(name, start, commands):
    place, listed = commands
    chance, arguments, own = random.Random(name), listed[name], name.replace(" ", "-")
    began = time.monotonic()
    whole = start(place / f"{own}-whole", arguments)
    whole.join()
    seconds = time.monotonic() - began
    assert whole.exitcode == 0, (place / f"{own}-whole/log").read_text()
    expected = results(name, place / f"{own}-whole")
    assert expected

    kills = chains = 0
    while kills < KILLS:
        folder = place / f"{own}-{chains}"
        while True:
            process = start(folder, arguments)
            process.join(chance.uniform(0, seconds) if kills < KILLS else None)
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            kills += 1
        assert process.exitcode == 0, (folder / "log").read_text()
        assert results(name, folder) == expected, folder
        shutil.rmtree(folder)
        chains += 1

    both = [start(place / f"{own}-both", arguments) for _ in range(2)]
    for process in both:
        process.join()
    said = (place / f"{own}-both/log").read_text()
    codes = sorted(process.exitcode for process in both)
    refused = said.count("by another process, ")
    assert (codes, refused) in (([0, 1], 1), ([0, 0], 0)), said  # the second may have come after the first
    assert results(name, place / f"{own}-both") == expected
    print(f"{name}: {kills} kills, {chains} runs, {seconds:.1f} s unbroken, two at once: {codes}")
