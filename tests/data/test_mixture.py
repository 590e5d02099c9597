"""The mixture: reproducible, resumable, audited."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from recurtrace import RecurTraceError
from recurtrace.data import mixture
from recurtrace.data.mixture import MixtureRecipe, build, read_examples, read_split


def question(number: int) -> str:
    return " ".join(f"word{i}of{number}" for i in range(18))


@pytest.fixture
def data_dir(tmp_path):
    folder = tmp_path / "data" / "openai__gsm8k" / "main"
    folder.mkdir(parents=True)
    records = [{"question": question(i), "answer": f"#### {i}"} for i in range(60)]
    train = [
        *records[:50],
        {"question": f"  {question(50).upper()} ", "answer": "#### 1"},
        {"question": "?", "answer": ""},
    ]
    for name, rows in (("train", train), ("test", records[50:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


def recipe(**fields) -> MixtureRecipe:
    sources = [{"task": "p_hop", "count": 40}, {"task": "gsm8k"}, {"task": "arithmetic", "count": 25}]
    return MixtureRecipe.check(
        {"sources": sources, "audit": ["p_hop", "gsm8k"], "heldout": 4, "shard_size": 20, **fields}, "recipe"
    )


def contents(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_what_is_written(tmp_path, data_dir):
    manifest = build(recipe(), tmp_path / "out", data_dir)
    assert manifest["complete"]
    gsm8k = manifest["sources"]["gsm8k"]
    assert (gsm8k["records"], gsm8k["without_answer"], gsm8k["removed_exact"]) == (52, 1, 1)
    assert (gsm8k["train"], gsm8k["heldout"]) == (46, 4)
    assert manifest["sources"]["p_hop"]["train"] == 40
    assert manifest["audit"]["tasks"] == {"p_hop": 4000, "gsm8k": 10}
    (removed,) = [json.loads(line) for line in (tmp_path / "out/removed/gsm8k.jsonl").read_text().splitlines()]
    assert removed["id"] == "gsm8k/train/50"
    assert removed["test_id"] == "gsm8k/test/0"
    assert removed["test_question"] == question(50)

    train, heldout = (read_examples(tmp_path / "out", split) for split in ("train", "heldout"))
    assert len({example.id for example in train + heldout}) == len(train) + len(heldout) == 40 + 46 + 25 + 4 + 4 + 2
    assert [file.name for file in read_split(tmp_path / "out", "train", ["p_hop"])] == [
        "p_hop-00000-of-00002.parquet",
        "p_hop-00001-of-00002.parquet",
    ]


def test_fewer_held_out_examples_than_asked_for_are_said(tmp_path, data_dir, caplog):
    manifest = build(recipe(heldout=30), tmp_path / "out", data_dir)
    assert manifest["sources"]["gsm8k"]["heldout"] == 5
    assert "gsm8k: 5 examples are held out, not 30: never more than a tenth of its 50 examples." in caplog.messages
    caplog.clear()
    build(recipe(heldout=2), tmp_path / "other", data_dir)
    assert not caplog.messages


def test_a_mixture_without_examples_is_refused(tmp_path, data_dir):
    file = data_dir / "openai__gsm8k" / "main" / "train.jsonl"
    file.write_text((file.parent / "test.jsonl").read_text())  # the audit removes them all
    fields = {"sources": [{"task": "gsm8k"}], "audit": ["gsm8k"]}
    with pytest.raises(RecurTraceError, match="has no training example: the audit removed them all"):
        build(recipe(**fields), tmp_path / "out", data_dir)
    with pytest.raises(RecurTraceError, match="is not finished"):
        read_split(tmp_path / "out", "train")


def test_identical_when_repeated(tmp_path, data_dir):
    for name in ("one", "two"):
        build(recipe(), tmp_path / name, data_dir)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    build(recipe(seed=1), tmp_path / "three", data_dir)
    assert contents(tmp_path / "one") != contents(tmp_path / "three")


def test_a_killed_build_goes_on(tmp_path, data_dir, monkeypatch):
    build(recipe(), tmp_path / "whole", data_dir)

    made = []
    original = mixture._build_source

    def killed(source, *rest):
        if source.task == "arithmetic" and not made.count("arithmetic"):
            made.append("arithmetic")
            raise KeyboardInterrupt
        made.append(source.task)
        return original(source, *rest)

    monkeypatch.setattr(mixture, "_build_source", killed)
    with pytest.raises(KeyboardInterrupt):
        build(recipe(), tmp_path / "out", data_dir)
    with pytest.raises(RecurTraceError, match="is not finished"):
        read_split(tmp_path / "out", "train")
    build(recipe(), tmp_path / "out", data_dir)
    assert made == ["p_hop", "gsm8k", "arithmetic", "arithmetic"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    build(recipe(), tmp_path / "out", data_dir)  # finished: nothing to do
    assert len(made) == 4


@pytest.mark.parametrize("overwrite", [False, True])
def test_killed_in_its_first_source(tmp_path, data_dir, monkeypatch, overwrite):
    if overwrite:
        build(recipe(seed=3), tmp_path / "out", data_dir)
    original = mixture._write_table

    def killed(out, name, examples):
        if name.startswith("heldout"):
            raise KeyboardInterrupt
        return original(out, name, examples)

    with monkeypatch.context() as patch:
        patch.setattr(mixture, "_write_table", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(), tmp_path / "out", data_dir, overwrite=overwrite)
    build(recipe(), tmp_path / "whole", data_dir)
    assert build(recipe(), tmp_path / "out", data_dir)["complete"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_test_questions_undo_what_was_audited(tmp_path, data_dir, monkeypatch):
    original = mixture._build_source

    def killed(source, *rest):
        if source.task == "arithmetic":
            raise KeyboardInterrupt
        return original(source, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(mixture, "_build_source", killed)
        with pytest.raises(KeyboardInterrupt):
            build(recipe(), tmp_path / "out", data_dir)
    with (data_dir / "openai__gsm8k/main/test.jsonl").open("a") as file:
        file.write(json.dumps({"question": question(3), "answer": "#### 3"}) + "\n")
    assert build(recipe(), tmp_path / "out", data_dir)["sources"]["gsm8k"]["removed_exact"] == 2


def test_missing_data(tmp_path, data_dir):
    wider = recipe(sources=[{"task": "gsm8k"}, {"task": "mathqa"}], audit=["gsm8k", "svamp"])
    with pytest.raises(RecurTraceError, match="svamp should be in .* or pass --skip-missing"):
        build(wider, tmp_path / "out", data_dir)
    assert not (tmp_path / "out").exists()
    manifest = build(wider, tmp_path / "out", data_dir, skip_missing=True)
    assert manifest["missing"] == ["mathqa"]
    assert manifest["audit"]["missing"] == ["svamp"]


def test_refusals(tmp_path, data_dir):
    build(recipe(), tmp_path / "out", data_dir)
    with pytest.raises(
        RecurTraceError, match="a different mixture .different recipe.; choose another folder, or pass --overwrite"
    ):
        build(recipe(seed=5), tmp_path / "out", data_dir)
    build(recipe(seed=5), tmp_path / "out", data_dir, overwrite=True)
    with pytest.raises(RecurTraceError, match="the mixture has no svamp; it has p_hop, gsm8k, arithmetic"):
        read_split(tmp_path / "out", "train", ["svamp"])
    shard = read_split(tmp_path / "out", "train")[0]
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(RecurTraceError, match="is missing or was changed"):
        read_split(tmp_path / "out", "train")
    with pytest.raises(RecurTraceError, match="holds no mixture; make one with"):
        read_split(tmp_path, "train")
    with pytest.raises(RecurTraceError, match="is not empty and holds no mixture"):
        build(recipe(), data_dir, data_dir)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": [{"task": "gsm9k"}]}, "there is no task 'gsm9k'"),
        ({"sources": [{"task": "mmlu"}]}, "mmlu is for testing only; train on"),
        ({"sources": [{"task": "gsm8k"}, {"task": "gsm8k"}]}, "gsm8k is listed twice"),
        ({"sources": [{"task": "c4"}]}, "c4 is streamed without an end; give it a count"),
        ({"sources": [{"task": "gsm8k", "cuont": 3}]}, "there is no field 'sources.0.cuont'"),
        ({"sources": [{"task": "gsm8k", "count": 0}]}, r"sources.0.count: input should be greater than 0 \(got 0\)"),
        ({"sources": []}, "sources: list should have at least 1 item"),
        ({"audit": ["c4"]}, "c4 has no test split"),
        ({"sizes": {"mapping": 999}}, "mapping needs between 2 and 32 symbols"),
    ],
)
def test_recipes_are_checked(fields, message):
    with pytest.raises(RecurTraceError, match=message):
        recipe(**fields)


def test_recipe_files(tmp_path):
    for text, message in (
        ("sources: [", "is not YAML"),
        ("just text", "holds no fields; it needs sources"),
    ):
        (tmp_path / "recipe.yaml").write_text(text)
        with pytest.raises(RecurTraceError, match=message):
            MixtureRecipe.read(tmp_path / "recipe.yaml")
    with pytest.raises(RecurTraceError, match="there is no recipe"):
        MixtureRecipe.read(tmp_path / "none.yaml")


def test_the_papers_mixture_has_seventeen_sources(request):
    paper = MixtureRecipe.read(request.config.rootpath / "recurtrace" / "recipes" / "paper" / "mixture.yaml")
    assert len(paper.sources) == 17
    assert len(paper.audit) == 30
    assert sum(source.count == 150_000 for source in paper.sources) == 3


def test_small_sizes_reach_the_generators(tmp_path):
    small = {"sources": [{"task": "p_hop", "count": 10}], "audit": [], "sizes": {"mapping": 4}}
    build(MixtureRecipe.check(small, "recipe"), tmp_path / "out")
    table = pq.read_table(read_split(tmp_path / "out", "train")[0])
    assert all(prompt.count(",") == 3 for prompt in table["prompt"].to_pylist())
    assert yaml.safe_load((tmp_path / "out/manifest.json").read_text())["recipe"]["sizes"]["mapping"] == 4
