"""The plans of the paper's four scales, for docs/reproducing.md.

    python -m studies.plans --page docs/reproducing.md

What `recurtrace run paper/qwen3-… --dry-run` prints, from the shapes of the bases: nothing is downloaded.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.common import write_between
from recurtrace.cli.dry_run import COLUMNS, plan_note, plan_rows
from recurtrace.errors import told
from recurtrace.model.families import QWEN3
from recurtrace.pipeline import PipelineRecipe
from recurtrace.pipeline.plan import plan

TFLOPS, GPUS = 200, 8
MARK = "plans"


def scale_plan(scale: str) -> str:
    """The plan of one scale, as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        QWEN3[scale].config().save_pretrained(folder)
        recipe = PipelineRecipe.read_with(f"paper/qwen3-{scale.lower()}", [f"base={folder}", f"out={folder}/out"])
        lines = plan(recipe)
    head, *rows = [f"| {' | '.join(row[:-1])} |" for row in (COLUMNS, *plan_rows(lines, TFLOPS))]  # nothing is done yet
    table = "\n".join([head, f"|---|{'---:|' * (len(COLUMNS) - 2)}", *rows])
    return "\n\n".join([f"### Qwen3-{scale}", table, plan_note(lines, TFLOPS, GPUS)])


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path, help="page to write them into")
    arguments = parser.parse_args()
    text = "\n\n".join(map(scale_plan, QWEN3))
    print(text)
    if arguments.page is not None:
        write_between(arguments.page, MARK, text)


if __name__ == "__main__":
    main()
