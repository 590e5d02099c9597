"""Loop a real language model on a laptop: a 15 M-parameter story model learns to answer questions about short stories.

    python examples/stories15m.py                                        # model and data from the hub
    python examples/stories15m.py --base FOLDER --data-dir FOLDER        # from local folders
    python examples/stories15m.py --steps 200                            # a first look, in minutes
    python examples/stories15m.py --questions nested                     # questions that need depth; no data to fetch

The base has read children's stories and was never asked a question. Stage 1 trains its loop modules, then the same
questions are answered at several depths. With bAbI the base stays frozen, as in the paper, and two loops do nearly all;
where things are in things, the looped layers are trained too (an extension), and further loops find further facts.
The same command resumes after an interruption.
"""

import argparse
from pathlib import Path

from recurtrace import stages
from recurtrace.errors import told

DEPTHS = "1,2,4,8"
DATA = {"babi": "stories15m/mixture", "nested": "stories15m/nested-mixture"}
OWN_SETTINGS = {
    "babi": {"loop": {"loop_start": 2, "loop_attn_head_dim": 72}},
    "nested": {
        "loop": {"loop_start": 2, "loop_attn_head_dim": 72, "loop_train_mean": 6, "loop_train_max": 9},
        "train_block": True,
        "block_learning_rate": 2e-4,
        "share_beginnings": True,  # a story is read once for all questions about it
        "curriculum": [{"until": 0.5, "hardest": 2}],  # one fact and two, before three and four
    },
}


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="nickypro/tinyllama-15M", help="hub id or folder of the model")
    parser.add_argument("--questions", choices=DATA, default="babi")
    parser.add_argument("--data-dir", type=Path, help="folder with the datasets, instead of the hub")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--out", type=Path, help="default: runs/stories15m-example and the questions")
    arguments = parser.parse_args()
    out = arguments.out or Path(f"runs/stories15m-example-{arguments.questions}")

    stages.data(recipe=DATA[arguments.questions], out=out / "mixture", data_dir=arguments.data_dir)
    budget = stages.train(
        model=arguments.base,
        data=out / "mixture",
        out=out / f"loop-{arguments.steps}",
        **OWN_SETTINGS[arguments.questions],
        steps=arguments.steps,
        batch_size=2,  # small steps: it is their number that counts
        micro_batch_size=2,
        max_length=256,
        learning_rate=1.5e-3,
        betas=(0.9, 0.98),
        answer_end="line",  # the end of the text is a token this base never saw
        precision="fp32",
        evaluate_every=max(100, arguments.steps // 3),
        evaluate_on=200,
        evaluate_depths=[1, 2, 4, 8],
        save_every=100,
    )
    found = stages.evaluate(
        model=out / f"loop-{arguments.steps}" / "model",
        data=out / "mixture",
        data_dir=arguments.data_dir,
        count=220,
        loops=DEPTHS,
        max_length=256,
        out=out / f"evaluation-{arguments.steps}",
    )
    print(f"\n{budget.trained_parameters:,} of {budget.parameters:,} parameters trained, {budget.steps} steps.")
    for loops in DEPTHS.split(","):
        results = [record.at(loops) for record in found.records]
        right, loss = sum(r.correct for r in results), sum(r.nll for r in results) / len(results)
        print(f"{loops:>2} loops: {right} of {len(results)} right, loss {loss:.2f}")
    record = found.records[0]
    print(f"\nFor example {record.id}, where {record.reference!r} is right:")
    print({result.loops: result.answer for result in record.results})


if __name__ == "__main__":
    main()
