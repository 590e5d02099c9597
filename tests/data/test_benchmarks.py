# ruff: noqa: E501 - records stay on one line each
"""Every row of the task table, on a hand-written record in its hub schema."""

import json

import pytest

from recurtrace import RecurTraceError
from recurtrace.data.answers import SCORERS
from recurtrace.data.benchmarks import TASKS, suite
from recurtrace.data.loading import load

CHOICES = {"text": ["ice", "fire", "sand"], "label": ["A", "B", "C"]}
RECORDS = {  # record, answer, something its prompt must hold
    "gsm8k": ({"question": "2+3?", "answer": "It is <<2+3=5>>5\n#### 5"}, "5", "Question: 2+3?\nAnswer:"),
    "math": ({"problem": "$1+1$", "solution": r"So $\boxed{2}$.", "level": "Level 1"}, "2", "$1+1$"),
    "mathqa": (
        {"Problem": "how far ?", "options": "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5", "correct": "d", "category": "gain"},
        "D", "D. 4\nE. 5\nAnswer:",
    ),
    "aqua_rat": ({"question": "x?", "options": ["A)21", "B)21.5", "C)22"], "correct": "C"}, "C", "A. 21\nB. 21.5"),
    "hotpotqa": (
        {"question": "Which band?", "answer": "Rush", "type": "bridge",
         "context": {"title": ["Rush"], "sentences": [["Rush is a band.", " It is Canadian."]]}},
        "Rush", "Context: Rush: Rush is a band. It is Canadian.\nQuestion: Which band?\nAnswer:",
    ),
    "2wikimultihopqa": (
        {"question": "Who?", "answer": "Ann", "type": "comparison",
         "context": {"title": ["A"], "sentences": [["Ann wrote it."]]}},
        "Ann", "A: Ann wrote it.",
    ),
    "musique": (
        {"id": "2hop__1_2", "question": "Where?", "answer": "Oslo", "answer_aliases": ["Kristiania"],
         "answerable": True, "paragraphs": [{"idx": 0, "title": "Oslo", "paragraph_text": "A city."}]},
        "Oslo", "Context: Oslo: A city.",
    ),
    "proofwriter": (
        {"theory": "Bob is big.", "question": "Bob is big.", "answer": "True", "QDep": 0}, "true", "Context: Bob is big.",
    ),
    "clutrr": (
        {"story": "[Ann] has a son [Bob].", "query": "('Bob', 'Ann')", "target_text": "mother", "f_comb": "mother"},
        "mother", "Context: Ann has a son Bob.\nQuestion: What is Ann to Bob?",
    ),
    "babi": (
        {"passage": "Mary went home.\n", "question": "Where is Mary?", "answer": "home", "task": 1},
        "home", "Mary went home.\nQuestion",
    ),
    "metamathqa": ({"query": "1+1?", "response": "Two.\n#### 2\nThe answer is: 2", "type": "GSM_Rephrased"}, "2", "1+1?"),
    "orca_math": ({"question": "How many?", "answer": "Add 2.\nSo there are 1,200.50 in all."}, "1200.5", "How many?"),
    "arc_easy": ({"question": "Cold?", "choices": CHOICES, "answerKey": "A"}, "A", "A. ice\nB. fire\nC. sand\nAnswer:"),
    "arc_challenge": (
        {"question": "Hot?", "choices": {"text": ["ice", "fire"], "label": ["1", "2"]}, "answerKey": "2"}, "B", "B. fire",
    ),
    "openbookqa": ({"question_stem": "Dry is", "choices": CHOICES, "answerKey": "C"}, "C", "Question: Dry is\nA. ice"),
    "boolq": ({"question": "is it so", "answer": True, "passage": "It is so."}, "yes", "Context: It is so.\n"),
    "piqa": ({"goal": "Cook?", "sol1": "fry", "sol2": "bake", "label": 1}, "B", "A. fry\nB. bake"),
    "hellaswag": (
        {"ctx": "He mows. then", "activity_label": "Mowing", "endings": ["a", "b", "c", "d"], "label": "2"},
        "C", "Mowing: He mows. then",
    ),
    "winogrande": (
        {"sentence": "The _ fell.", "option1": "cup", "option2": "cat", "answer": "1"}, "A", "The _ fell.\nA. cup",
    ),
    "mmlu": ({"question": "Z?", "subject": "algebra", "choices": ["0", "3"], "answer": 0}, "A", "A. 0\nB. 3"),
    "bbh_date_understanding": ({"input": "When?\nOptions:\n(A) now\n(B) then", "target": "(B)"}, "B", "(B) then\nAnswer:"),
    "bbh_multistep_arithmetic_two": ({"input": "((1 + 2)) =", "target": "3"}, "3", "((1 + 2)) =\nAnswer:"),
    "lambada": ({"text": "He gave her the cup"}, "cup", "He gave her the"),
    "multiarith": ({"question": " How many? ", "final_ans": "36"}, "36", "Question: How many?\nAnswer:"),
    "svamp": (
        {"Body": "A has 6", "Question": "How many?", "Answer": "72.0", "Type": "Multiplication"}, "72", "A has 6. How many?",
    ),
    "c4": ({"text": " ".join(f"w{i}" for i in range(40))}, " ".join(f"w{i}" for i in range(20, 40)), "w0 w1"),
}  # fmt: skip


def test_the_papers_suites():
    assert len(suite("train_covered")) == 14
    assert len(suite("classic")) == 8
    assert len(suite("diagnostic")) == 8
    assert {task.name for task in suite("training")} - {task.name for task in suite("train_covered")} == {
        "metamathqa", "orca_math", "c4",
    }  # fmt: skip
    assert all(task.scorer in SCORERS for task in TASKS.values())


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_becomes_an_example(name):
    record, answer, part = RECORDS[name]
    task = TASKS[name]
    assert set(task.columns) <= record.keys()
    parts = task.read(record)
    assert parts.answer == answer
    assert part in parts.prompt
    assert SCORERS[task.scorer](parts.answer, parts.answer)


def test_rows_without_a_record_of_their_own_share_a_reader():
    readers = {TASKS[name].read for name in RECORDS}
    assert all(task.read in readers for task in TASKS.values() if task.hub)


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("gsm8k", {"question": "?", "answer": "no hashes"}),
        ("math", {"problem": "?", "solution": "no box", "level": "Level 1"}),
        ("mathqa", {"Problem": "?", "options": "a ) 1", "correct": "e"}),
        ("musique", RECORDS["musique"][0] | {"answerable": False}),
        ("piqa", RECORDS["piqa"][0] | {"label": -1}),
        ("hellaswag", RECORDS["hellaswag"][0] | {"label": ""}),
        ("winogrande", RECORDS["winogrande"][0] | {"answer": ""}),
        ("arc_easy", {"question": "?", "choices": CHOICES, "answerKey": "E"}),
        ("c4", {"text": "too short"}),
    ],
)
def test_a_record_without_an_answer_is_left_out(name, record):
    assert TASKS[name].read(record) is None


class TestFolders:
    def write(self, tmp_path, place, *records):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return tmp_path

    def test_loading(self, tmp_path):
        good, bad = RECORDS["gsm8k"][0], {"question": "?", "answer": "none"}
        self.write(tmp_path, "openai__gsm8k/main/test.jsonl", good, bad, good)
        loaded = load("gsm8k", "test", tmp_path)
        assert [example.id for example in loaded.examples] == ["gsm8k/test/0", "gsm8k/test/2"]
        assert loaded.unusable == 1
        assert len(load("gsm8k", "test", tmp_path, limit=1).examples) == 1

    def test_one_split_is_divided_by_hash(self, tmp_path):
        records = [{"question": f"q{i}?", "answer": bool(i % 2)} for i in range(200)]
        self.write(tmp_path, "wics__strategy-qa/default/train.jsonl", *records)
        train, test = (
            {example.prompt for example in load("strategyqa", split, tmp_path).examples} for split in ("train", "test")
        )
        assert not train & test
        assert len(train | test) == 200
        assert 20 < len(test) < 60

    def test_generated_tasks(self):
        assert len(load("p_hop", "train", limit=5).examples) == 5
        assert len(load("symbolic", "test", limit=7).examples) == 7

    def test_errors(self, tmp_path):
        for arguments, message in (
            (("gsm9k", "test", tmp_path), "there is no task 'gsm9k'"),
            (("mmlu", "train", tmp_path), "mmlu has no train split; it has test"),
            (("gsm8k", "test", tmp_path / "no"), "does not exist"),
            (("gsm8k", "test", tmp_path), "the test data of gsm8k should be in .*main/test.jsonl"),
        ):
            with pytest.raises(RecurTraceError, match=message):
                load(*arguments)
        self.write(tmp_path, "openai__gsm8k/main/test.jsonl", {"query": "?", "answer": "#### 1"})
        with pytest.raises(RecurTraceError, match=r"lack question \(they have query, answer\)"):
            load("gsm8k", "test", tmp_path)
        self.write(tmp_path, "openai__gsm8k/main/test.jsonl")
        with pytest.raises(RecurTraceError, match="gave no example"):
            load("gsm8k", "test", tmp_path)
        (tmp_path / "openai__gsm8k/main/test.jsonl").write_text('{"question": "?", ')
        with pytest.raises(RecurTraceError, match="line 1 of .* is not JSON"):
            load("gsm8k", "test", tmp_path)


def test_a_dataset_that_is_a_script_is_read_from_its_conversion(monkeypatch):
    asked = []

    def load_dataset(place, *config, **options):
        asked.append((place, options.get("data_files")))
        if place == "wics/strategy-qa":
            raise RuntimeError("Dataset scripts are no longer supported, but found strategy-qa.py")
        return [{"question": f"{i}?", "answer": True} for i in range(20)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert load("strategyqa", "train").examples[0].answer == "yes"
    assert asked[1] == (
        "parquet",
        "hf://datasets/wics/strategy-qa@refs%2Fconvert%2Fparquet/default/train/*.parquet",
    )
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("gone")))
    with pytest.raises(RecurTraceError, match="could not be loaded from the hub: gone"):
        load("strategyqa", "train")
