"""Runs side by side: they are compared on the items that all of them have, and on no others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recurtrace.records import Evaluation


@dataclass(frozen=True)
class Paired:
    """Evaluations of several runs, cut to the items they share."""

    runs: dict[str, list[Evaluation]]
    """By the name of the run, one for each training seed."""
    note: str = ""
    """Which items and training seeds are missing where; empty where every run has all of them."""

    @property
    def items(self) -> int:
        return len(next(iter(self.runs.values()))[0].records)


def paired(evaluations: Mapping[str, Sequence[Evaluation]], *runs: str) -> Paired:
    """The named runs on the items of all their evaluations: the same item has the same id and prompt."""
    chosen, seeds_note = _of_shared_seeds({run: evaluations[run] for run in runs})
    every = [{record.key for record in one.records} for seeds in chosen.values() for one in seeds]
    shared = set.intersection(*every)
    if all(keys == shared for keys in every):
        return Paired({run: list(seeds) for run, seeds in chosen.items()}, seeds_note)
    cut = {
        run: [replace(one, records=[record for record in one.records if record.key in shared]) for one in seeds]
        for run, seeds in chosen.items()
    }
    return Paired(cut, f"{_left_out(chosen, shared)} {seeds_note}".strip())


def _of_shared_seeds(
    chosen: Mapping[str, Sequence[Evaluation]],
) -> tuple[Mapping[str, Sequence[Evaluation]], str]:
    """Runs at the training seeds that all of them have; a run without seeds stands beside every seed."""
    seeds = {run: {one.seed for one in found} for run, found in chosen.items() if len(found) > 1}
    shared = set.intersection(*seeds.values()) if seeds else set()
    if not shared or None in set().union(*seeds.values()) or all(of_run == shared for of_run in seeds.values()):
        return chosen, ""
    cut = {run: [one for one in found if run not in seeds or one.seed in shared] for run, found in chosen.items()}
    extra = [
        f"{', '.join(str(one.seed) for one in found if one.seed not in shared)} of {run}"
        for run, found in chosen.items()
        if seeds.get(run, shared) != shared
    ]
    return cut, f"Of the training seeds that all have; left out are {' and '.join(extra)}."


def _left_out(chosen: Mapping[str, Sequence[Evaluation]], shared: set[tuple[str, str]]) -> str:
    said = []
    for run, seeds in chosen.items():
        items = {record.key: record.task for one in seeds for record in one.records}
        extra = {key: task for key, task in items.items() if key not in shared}
        if extra:
            said.append(f"{len(extra):,} of {len(items):,} items of {run} ({', '.join(sorted(set(extra.values())))})")
    return f"On the {len(shared):,} items that all have; left out are {' and '.join(said)}."
