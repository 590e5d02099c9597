"""Several processes or machines on one study: each stage is run by one of them, and the result is that of one alone."""

import contextlib
import subprocess
import sys

import pytest

from recurtrace.errors import RecurTraceError
from recurtrace.files import lock
from recurtrace.pipeline import Pipeline, PipelineRecipe
from tests.test_pipeline import result_files, small_recipe


@pytest.fixture(scope="module")
def recipe(base_folder, tmp_path_factory):
    return small_recipe(base_folder, tmp_path_factory.mktemp("sharing"))


def test_machines_that_share_a_folder_divide_the_stages(recipe, tmp_path):
    made = PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}", "probe=null", "train.loop.loop_start=2"])
    told = []
    pipeline = Pipeline(made, lambda name, why_not: told.append(name))
    with pytest.raises(RecurTraceError, match="train loop 0 needs data, which is not done"):
        pipeline.run(only=["train loop"])  # of every seed
    with pytest.raises(RecurTraceError, match="no stage is called 'tain'; the stages are data, evaluate base"):
        pipeline.run(only=["tain"])
    pipeline.run(only=["data"])
    assert told == ["data"]

    script = tmp_path / "launcher.py"  # says what it was asked to start, and starts nothing
    script.write_text(f"import sys; open({str(tmp_path / 'asked')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')")
    pipeline.run(only=["train loop 0", "train plain*"], launcher=[sys.executable, str(script)])
    asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
    assert [words[:3] for words in asked] == [["-m", "recurtrace", "train"]] * 2
    assert told == ["data", "train loop 0", "train plain-loop 0"]
    with pytest.raises(RecurTraceError, match=r"ended with 3; its output is above"):
        pipeline.run(only=["train full 0"], launcher=[sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(RecurTraceError, match="no launcher 'no-such'; check --launch"):
        pipeline.run(only=["train full *"], launcher=["no-such"])


def test_a_stage_that_another_process_runs_is_left_to_it(recipe, tmp_path, monkeypatch):
    made = PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}", "probe=null", "train.loop.loop_start=2"])
    told = []
    pipeline = Pipeline(made, lambda *one: told.append(one))
    wanted = ["data", "evaluate base", "train full"]
    with contextlib.ExitStack() as held:
        (tmp_path / "out" / "stages").mkdir(parents=True)
        held.enter_context(lock(tmp_path / "out" / "stages" / "data.lock", "it is taken"))
        with pytest.raises(RecurTraceError, match="data of .* is being run by another process"):
            pipeline.run(only=wanted)
        monkeypatch.setattr("recurtrace.pipeline.run.time.sleep", lambda seconds: held.close())
        pipeline.run(only=wanted, share=True)
    assert told == [
        ("data", "left to another process"),
        ("evaluate base", "waits for data"),
        ("train full 0", "waits for data"),
        *((name, "") for name in ("data", "evaluate base", "train full 0")),
    ]


def test_what_another_process_is_making_is_waited_for(recipe, tmp_path, monkeypatch):
    made = PipelineRecipe.read_with(recipe, [f"out={tmp_path / 'out'}", "probe=null", "train.loop.loop_start=2"])
    pipeline = Pipeline(made)
    (tmp_path / "out" / "stages").mkdir(parents=True)

    def finish(seconds):
        held.close()
        pipeline.run(only=["data"])

    monkeypatch.setattr("recurtrace.pipeline.run.time.sleep", finish)
    with contextlib.ExitStack() as held:
        held.enter_context(lock(tmp_path / "out" / "stages" / "data.lock", "it is taken"))
        pipeline.run(only=["evaluate base"], share=True)
    assert pipeline.states(pipeline.stages())["evaluate base"].done
    with pytest.raises(RecurTraceError, match="needs train loop 0, which is not done"):
        pipeline.run(only=["sweep train"], share=True)  # nobody makes it


@pytest.mark.slow
def test_two_processes_share_a_study(recipe, tmp_path):
    """What they make together is what one makes alone."""
    changes = ["out=out", "probe=null", "train.loop.loop_start=2", "heldout=8", "depth=6"]
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
    with contextlib.chdir(tmp_path / "alone"):
        Pipeline(PipelineRecipe.read_with(recipe, changes)).run()
    command = [sys.executable, "-m", "recurtrace", "run", str(recipe), "--share"]
    command += [word for change in changes for word in ("--set", change)]
    both = [
        subprocess.Popen(
            command, cwd=tmp_path / "together", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert all("left to another process" in one or "waits for" in one for one in said)
    one, other = (result_files(tmp_path / name / "out") for name in ("alone", "together"))
    assert list(one) == list(other)
    assert [name for name in one if one[name] != other[name]] == []
