"""The cost of the overlap audit at the paper's size: 1.15 M training × 50 k test questions of realistic lengths.

python -m benchmarks.overlap_audit [--train 1150000] [--test 50000]
"""

import argparse
import random
import resource
import time
from collections.abc import Iterator

from tqdm import tqdm

from recurtrace.data.overlap import OverlapIndex
from recurtrace.errors import told

WORDS = [f"w{i}" for i in range(30_000)]


def question(rng: random.Random) -> str:
    """Words by Zipf's law, lengths around those of a word problem (median 40, a long tail)."""
    length = max(4, int(rng.lognormvariate(3.7, 0.6)))
    return " ".join(WORDS[min(int(rng.paretovariate(0.9)) - 1, len(WORDS) - 1)] for _ in range(length))


@told()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=int, default=1_150_000)
    parser.add_argument("--test", type=int, default=50_000)
    arguments = parser.parse_args()

    rng = random.Random(0)
    tests = [question(rng) for _ in range(arguments.test)]
    planted = set(rng.sample(range(arguments.train), min(300, arguments.train)))

    def training() -> Iterator[str]:
        for index in range(arguments.train):
            if index in planted:  # a test question with a word added: near for all but the shortest
                yield f"{rng.choice(tests)} more"
            else:
                yield question(rng)

    began = time.perf_counter()
    for _ in training():
        pass
    making = time.perf_counter() - began

    began = time.perf_counter()
    index = OverlapIndex([(str(number), text) for number, text in enumerate(tests)])
    indexing = time.perf_counter() - began
    began = time.perf_counter()
    found = sum(1 for _ in index.audit(tqdm(training(), total=arguments.train)))
    auditing = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{arguments.train:,} training × {arguments.test:,} test questions, {found} overlaps")
    print(f"index {indexing:.0f} s · audit {auditing - making:.0f} s, making the text apart · peak {peak:.1f} GiB")


if __name__ == "__main__":
    main()
