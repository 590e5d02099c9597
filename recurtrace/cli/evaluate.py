"""`recurtrace evaluate`: a model's accuracy and likelihood, item by item."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from recurtrace.cli.data import DataDir
from recurtrace.cli.options import Dtype
from recurtrace.errors import RecurTraceError


def evaluate(
    model: Annotated[str, typer.Argument(help="A looped model, a base, a fine-tuned base or a PEFT adapter.")],
    tasks: Annotated[str, typer.Option(help="Tasks or suites separated by commas, or the folder of a mixture.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    loops: Annotated[str, typer.Option(help="Depths: numbers, adaptive, k (as many as the problem has steps).")] = (
        "1,2,4,6,8"
    ),
    split: Annotated[Literal["test", "heldout"], typer.Option(help="Which items.")] = "test",
    data_dir: DataDir = None,
    count: Annotated[int | None, typer.Option(min=1, help="Items of each task, stratified; all if left out.")] = None,
    seeds: Annotated[int, typer.Option(min=0, help="Disjoint evaluation seeds to divide each task into.")] = 0,
    per_seed: Annotated[int, typer.Option(min=1, help="Items of one task in one evaluation seed.")] = 300,
    head: Annotated[str | None, typer.Option(help="Halting head for adaptive, if not the model's own.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Items in one unroll.")] = 16,
    max_length: Annotated[int, typer.Option(help="Longest item, in tokens.")] = 1024,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights: auto is the checkpoint's own.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, …; auto is the best there is.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the sample.")] = 0,
) -> None:
    """Answer every item at every depth asked for, and write a record of each.

    The same command goes on after a kill. For several processes: `accelerate launch -m recurtrace evaluate …`.
    """
    from rich.console import Console
    from rich.table import Table

    from recurtrace.data.mixture import gather
    from recurtrace.data.sampling import evaluation_seeds, stratified
    from recurtrace.evaluation.evaluate import evaluate as run
    from recurtrace.model.loading import load_any
    from recurtrace.records import read_evaluation

    asked = parse_loops(loops)
    examples = gather(expand_suites(tasks), data_dir, count, seed, split)
    by_task = {task: [example for example in examples if example.task == task] for task in {e.task for e in examples}}
    chosen, numbers = [], []
    for task in sorted(by_task):
        groups = [stratified(by_task[task], count or len(by_task[task]), seed)]
        if seeds:
            groups = evaluation_seeds(by_task[task], seeds, per_seed, seed)
        for number, group in enumerate(groups):
            chosen += group
            numbers += [number if seeds else -1] * len(group)
    looped, tokenizer, kind = load_any(model, dtype=dtype, device=device)
    if kind != "looped" and asked != [1]:
        raise RecurTraceError(f"{model!r} has no loops; evaluate it with --loops 1.")
    about = {"model": model, "kind": kind, "tasks": tasks, "split": split, "seed": seed}
    run(looped, tokenizer, chosen, out, asked, numbers, head, batch_size, max_length, about)

    if int(os.environ.get("RANK", "0")) != 0:
        return
    found = read_evaluation(out)
    table = Table("task", "loops", "accuracy", "NLL", "mean depth", "items")
    for task in [*sorted(by_task), *(["all"] if len(by_task) > 1 else [])]:
        records = [record for record in found.records if task in ("all", record.task)]
        for name in map(str, asked):
            results = [record.at(name) for record in records]
            row = [
                sum(values) / len(results)
                for values in zip(*((r.correct, r.nll, r.depth) for r in results), strict=True)
            ]
            table.add_row(task, name, f"{row[0]:.1%}", f"{row[1]:.4f}", f"{row[2]:.2f}", str(len(results)))
    Console().print(table)
    typer.echo(f"{len(found.records):,} records are in {out}.")


def parse_loops(text: str) -> list[int | str]:
    asked: list[int | str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        numbers = first.isdigit() and (last.isdigit() if dash else True)
        if part.strip() in ("adaptive", "k"):
            asked.append(part.strip())
        elif numbers and 0 < int(first) <= int(last or first):
            asked += range(int(first), int(last or first) + 1)
        else:
            raise RecurTraceError(f"--loops takes numbers, adaptive and k, separated by commas, got {part!r}.")
    return list(dict.fromkeys(asked))


def expand_suites(tasks: str) -> str:
    """Names of suites replaced by their tasks."""
    from recurtrace.data.benchmarks import SUITES, suite

    parts = [part.strip() for part in tasks.split(",")]
    return ",".join(name for part in parts for name in ([t.name for t in suite(part)] if part in SUITES else [part]))
