"""The table of tasks: where each comes from, and how a record becomes a direct-answer example.

A row names the hub dataset and its columns. `read` takes one record and gives the parts of an example, or None where
the record holds no usable answer; loading counts those. Everything is direct-answer: the target is the short final
answer, never a chain of thought.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from recurtrace.data.answers import LETTERS, SCORERS, after_hashes, boxed, mathqa_options, plain_number
from recurtrace.data.example import Example

SUITES = ("train_covered", "classic", "diagnostic", "training", "stories")


@dataclass(frozen=True)
class Parts:
    """What a record holds, before it is laid out as a prompt."""

    question: str
    answer: str
    context: str = ""
    choices: tuple[str, ...] = ()
    bucket: str = ""
    aliases: tuple[str, ...] = ()
    frame: Literal["question", "answer", "bare"] = "question"
    """What is written around the question: context, options and "Answer:"; only "Answer:"; nothing."""

    @property
    def asked(self) -> str:
        """Context and question without the frame, which the overlap audit compares."""
        return f"{self.context.strip()}\n{self.question.strip()}".strip()

    @property
    def prompt(self) -> str:
        if self.frame == "bare":
            return self.question
        if self.frame == "answer":
            return f"{self.question.strip()}\nAnswer:"
        context = f"Context: {self.context.strip()}\n" if self.context else ""
        options = "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, self.choices, strict=False))
        return f"{context}Question: {self.question.strip()}\n{options}Answer:"


Record = Mapping[str, Any]
Read = Callable[[Record], Parts | None]


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    name: str
    suites: tuple[str, ...]
    read: Read
    hub: str | None = None
    """Hub id; None for a task that is generated, or read from files of its own."""
    configs: tuple[str, ...] = ("default",)
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    """Our role of a split (train, test) → its name on the hub; heldout too, where a task has its own."""
    columns: tuple[str, ...] = ()
    """Columns `read` needs; a record without them is refused by name."""
    scorer: str = "text"
    max_new_tokens: int = 16
    hash_split: int = 0
    """For data with one split only: one record in so many, by its hash, is the test."""
    streamed: bool = False
    """Too large to fetch: its first records are read as they come."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """For data kept in a folder under other names: role of a split → pattern of its files."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """For data of one's own (data/own.py): role of a split → its file."""

    @property
    def generated(self) -> bool:
        """By data/synthetic.py, data/stories.py or data/nested.py."""
        return self.hub is None and not self.files

    @property
    def endless(self) -> bool:
        """Generated or streamed: only as many are made or fetched as are asked for."""
        return self.generated or self.streamed

    @property
    def marks(self) -> dict[str, Any]:
        """What an example of a task that is not in the table must carry with it."""
        return {"scorer": self.scorer, "max_new_tokens": self.max_new_tokens} if self.files else {}


# --- parts that several records share -----------------------------------------------------------------------------


def choosing(question: str, options: list[str], answer: int, bucket: str = "") -> Parts:
    return Parts(question, LETTERS[answer], choices=tuple(option.strip() for option in options), bucket=bucket)


def paragraphs(titles: list[str], sentences: list[list[str]]) -> str:
    texts = (" ".join(part.strip() for part in parts) for parts in sentences)
    return "\n".join(f"{title}: {text}" for title, text in zip(titles, texts, strict=True))


# --- records -----------------------------------------------------------------------------------------------------


def gsm8k(record: Record) -> Parts | None:
    answer = after_hashes(record["answer"])
    steps = record["answer"].count("<<")
    return Parts(record["question"], answer, bucket=f"steps={min(steps, 8)}") if answer else None


def math(record: Record) -> Parts | None:
    answer = boxed(record["solution"])
    return Parts(record["problem"], answer, bucket=str(record["level"])) if answer else None


def mathqa(record: Record) -> Parts | None:
    options = mathqa_options(record["options"])
    answer = "abcde".find(record["correct"].strip())
    if not 0 <= answer < len(options):
        return None
    return choosing(record["Problem"], options, answer, bucket=record.get("category") or "")


def aqua_rat(record: Record) -> Parts | None:
    options = [re.sub(r"^\s*\(?[A-E]\s*\)\s*", "", option) for option in record["options"]]
    answer = "ABCDE".find(record["correct"].strip())
    return choosing(record["question"], options, answer) if 0 <= answer < len(options) else None


def metamath(record: Record) -> Parts | None:
    match = re.search(r"The answer is:?\s*(.+?)\s*$", record["response"])
    return Parts(record["query"], match[1], bucket=record.get("type", "")) if match else None


def orca_math(record: Record) -> Parts | None:
    """The solution's last number; one that ends in words is left out."""
    last = record["answer"].strip().splitlines()[-1] if record["answer"].strip() else ""
    numbers = re.findall(r"-?\$?\d[\d,]*(?:\.\d+)?", last)
    return Parts(record["question"], plain_number(numbers[-1])) if numbers else None


def multi_hop(record: Record) -> Parts | None:
    """HotpotQA and 2WikiMultiHopQA: titles and sentences beside each other."""
    context = paragraphs(record["context"]["title"], record["context"]["sentences"])
    return Parts(record["question"], record["answer"].strip(), context, bucket=record.get("type") or "")


def musique(record: Record) -> Parts | None:
    if not record.get("answerable", True):
        return None
    context = "\n".join(f"{part['title']}: {part['paragraph_text'].strip()}" for part in record["paragraphs"])
    return Parts(
        record["question"],
        record["answer"].strip(),
        context,
        bucket=record["id"].split("__")[0],
        aliases=tuple(record.get("answer_aliases") or ()),
    )


def yes_no(record: Record) -> Parts | None:
    """StrategyQA and BoolQ."""
    return Parts(record["question"], "yes" if record["answer"] else "no", record.get("passage") or "")


def proofwriter(record: Record) -> Parts | None:
    question = f"Is this true, false or unknown? {record['question'].strip()}"
    depth = f"depth={record['QDep']}"
    return Parts(question, str(record["answer"]).strip().lower(), record["theory"], bucket=depth)


def clutrr(record: Record) -> Parts | None:
    names = re.findall(r"'([^']+)'", record["query"])
    if len(names) != 2:
        return None
    story = record["story"].replace("[", "").replace("]", "")
    hops = record["f_comb"].count("-") + 1
    return Parts(f"What is {names[1]} to {names[0]}?", record["target_text"], story, bucket=f"hops={hops}")


def babi(record: Record) -> Parts | None:
    return Parts(record["question"], record["answer"].strip(), record["passage"], bucket=f"task={record['task']}")


def c4(record: Record) -> Parts | None:
    """A language anchor: half a passage is read, the other half is the target."""
    words = record["text"].split()[:128]
    half = len(words) // 2
    return Parts(" ".join(words[:half]), " ".join(words[half:]), frame="bare") if half >= 16 else None


def labelled_choice(record: Record) -> Parts | None:
    """ARC and OpenBookQA: choices with their own labels, letters or digits."""
    labels = record["choices"]["label"]
    if record["answerKey"] not in labels:
        return None
    question = record.get("question") or record["question_stem"]
    return choosing(question, record["choices"]["text"], labels.index(record["answerKey"]))


def piqa(record: Record) -> Parts | None:
    return (
        choosing(record["goal"], [record["sol1"], record["sol2"]], int(record["label"]))
        if int(record["label"]) >= 0
        else None
    )


def hellaswag(record: Record) -> Parts | None:
    if record["label"] == "":
        return None
    question = f"How does this go on? {record['activity_label']}: {record['ctx'].strip()}"
    return choosing(question, record["endings"], int(record["label"]))


def winogrande(record: Record) -> Parts | None:
    if record["answer"] not in ("1", "2"):
        return None
    question = f"What belongs in the blank? {record['sentence']}"
    return choosing(question, [record["option1"], record["option2"]], int(record["answer"]) - 1)


def mmlu(record: Record) -> Parts | None:
    return choosing(record["question"], record["choices"], int(record["answer"]), bucket=record["subject"])


def bbh(record: Record) -> Parts | None:
    target = record["target"].strip()
    options = tuple(re.findall(r"^\([A-Z]\) (.*)$", record["input"], flags=re.MULTILINE))
    return Parts(record["input"], target.strip("()"), choices=options, frame="answer")


def lambada(record: Record) -> Parts | None:
    before, _, last = record["text"].strip().rpartition(" ")
    return Parts(before, last, frame="bare") if before else None


def multiarith(record: Record) -> Parts | None:
    return Parts(record["question"], plain_number(record["final_ans"]))


def svamp(record: Record) -> Parts | None:
    body = record["Body"].strip()
    body += "" if body.endswith((".", "?", "!")) else "."
    return Parts(f"{body} {record['Question'].strip()}", plain_number(record["Answer"]), bucket=record["Type"])


def generated(record: Record) -> Parts | None:
    raise LookupError("a generated task has no records")  # data/loading.py says which file makes its examples


# --- the table ---------------------------------------------------------------------------------------------------

COVERED = ("train_covered", "training")
VALIDATED = {"train": "train", "test": "validation"}  # the hub's test split has no answers
OWN_HELDOUT = {"train": "train", "heldout": "heldout", "test": "test"}

TASKS = {
    task.name: task
    for task in (
        Task("arithmetic", COVERED, generated, scorer="number"),
        Task("p_hop", COVERED, generated, scorer="exact"),
        Task("symbolic", COVERED, generated, scorer="exact"),
        *(
            Task(name, ("stories",), generated, splits=OWN_HELDOUT, scorer="exact")
            for name in ("where_person", "who_has", "where_thing", "where_left", "nested")
        ),
        Task("gsm8k", COVERED, gsm8k, "openai/gsm8k", ("main",), columns=("question", "answer"), scorer="number"),
        Task(
            "math", COVERED, math, "EleutherAI/hendrycks_math",
            ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
             "precalculus"),
            columns=("problem", "solution", "level"), scorer="math", max_new_tokens=32,
        ),
        Task("mathqa", COVERED, mathqa, "regisss/math_qa", columns=("Problem", "options", "correct"), scorer="letter"),
        Task("aqua_rat", COVERED, aqua_rat, "deepmind/aqua_rat", ("raw",), columns=("question", "options", "correct"),
             scorer="letter"),
        Task("hotpotqa", COVERED, multi_hop, "hotpotqa/hotpot_qa", ("distractor",), VALIDATED,
             columns=("question", "answer", "context"), max_new_tokens=32),
        Task("musique", COVERED, musique, "dgslibisey/MuSiQue", splits=VALIDATED,
             columns=("id", "question", "answer", "paragraphs"), max_new_tokens=32),
        Task("2wikimultihopqa", COVERED, multi_hop, "framolfese/2WikiMultihopQA", splits=VALIDATED,
             columns=("question", "answer", "context"), max_new_tokens=32),
        Task("strategyqa", COVERED, yes_no, "wics/strategy-qa", splits={"train": "train", "test": "train"},
             columns=("question", "answer"), hash_split=5),
        Task("proofwriter", COVERED, proofwriter, "tasksource/proofwriter",
             columns=("theory", "question", "answer", "QDep")),
        Task("clutrr", COVERED, clutrr, "CLUTRR/v1", ("gen_train23_test2to10",),
             columns=("story", "query", "target_text", "f_comb"), folders={"train": "*/*_train", "test": "*/*_test"}),
        Task("babi", COVERED, babi, "Muennighoff/babi", columns=("passage", "question", "answer", "task")),
        Task("metamathqa", ("training",), metamath, "meta-math/MetaMathQA", splits={"train": "train"},
             columns=("query", "response"), scorer="math"),
        Task("orca_math", ("training",), orca_math, "microsoft/orca-math-word-problems-200k", splits={"train": "train"},
             columns=("question", "answer"), scorer="number"),
        Task("c4", ("training",), c4, "allenai/c4", ("en",), {"train": "train"}, columns=("text",),
             streamed=True, folders={"train": "en/sample"}),
        Task("arc_easy", ("classic",), labelled_choice, "allenai/ai2_arc", ("ARC-Easy",),
             columns=("question", "choices", "answerKey"), scorer="letter"),
        Task("arc_challenge", ("classic",), labelled_choice, "allenai/ai2_arc", ("ARC-Challenge",),
             columns=("question", "choices", "answerKey"), scorer="letter"),
        Task("openbookqa", ("classic",), labelled_choice, "allenai/openbookqa", ("main",),
             columns=("question_stem", "choices", "answerKey"), scorer="letter"),
        Task("boolq", ("classic",), yes_no, "google/boolq", splits=VALIDATED,
             columns=("question", "answer", "passage")),
        Task("piqa", ("classic",), piqa, "baber/piqa", splits=VALIDATED, columns=("goal", "sol1", "sol2", "label"),
             scorer="letter"),
        Task("hellaswag", ("classic",), hellaswag, "Rowan/hellaswag", splits=VALIDATED,
             columns=("ctx", "activity_label", "endings", "label"), scorer="letter"),
        Task("winogrande", ("classic",), winogrande, "allenai/winogrande", ("winogrande_xl",), VALIDATED,
             columns=("sentence", "option1", "option2", "answer"), scorer="letter"),
        Task("mmlu", ("classic",), mmlu, "cais/mmlu", ("all",), {"test": "test"},
             columns=("question", "choices", "answer", "subject"), scorer="letter"),
        *(
            Task(f"bbh_{name}", ("diagnostic",), bbh, "SaylorTwift/bbh", (name,), {"test": "test"},
                 columns=("input", "target"), scorer="number" if name == "multistep_arithmetic_two" else "letter")
            for name in (
                "date_understanding", "logical_deduction_three_objects", "logical_deduction_five_objects",
                "multistep_arithmetic_two", "tracking_shuffled_objects_three_objects",
            )
        ),
        Task("lambada", ("diagnostic",), lambada, "EleutherAI/lambada_openai", splits={"test": "test"},
             columns=("text",)),
        Task("multiarith", ("diagnostic",), multiarith, "ChilleD/MultiArith", splits={"test": "test"},
             columns=("question", "final_ans"), scorer="number"),
        Task("svamp", ("diagnostic",), svamp, "ChilleD/SVAMP", splits={"test": "test"},
             columns=("Body", "Question", "Answer", "Type"), scorer="number", folders={"test": "default/all1000"}),
    )
}  # fmt: skip


def is_right(example: Example, prediction: str) -> bool:
    """Whether an answer counts, by the scorer of the example's task."""
    scorer = example.scorer or (TASKS[example.task].scorer if example.task in TASKS else "text")
    return any(SCORERS[scorer](prediction, answer) for answer in (example.answer, *example.aliases))


def longest_answer(example: Example) -> int:
    """How many tokens a model may write before it is stopped."""
    row = TASKS[example.task].max_new_tokens if example.task in TASKS else Task.max_new_tokens
    return example.max_new_tokens or row


def suite(name: str) -> list[Task]:
    return [task for task in TASKS.values() if name in task.suites]
