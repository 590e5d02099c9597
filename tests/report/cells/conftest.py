"""A study written by hand, its tables, and its sweeps item by item."""

import pandas as pd
import pytest

from recurtrace.report.contents import all_tables
from recurtrace.report.workspace import read_studies
from tests.report.cells.halting import Halting
from tests.report.handmade import SEEDS, as_rows, write_study


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cells")


@pytest.fixture(scope="package")
def study(folder):
    sweeps = write_study(folder)
    tables = {table.name: table for table in all_tables(*read_studies(folder))}
    return tables, pd.DataFrame(as_rows(folder)), sweeps


@pytest.fixture(scope="package")
def halting(study):
    sweeps = study[2]
    return [Halting(sweeps[seed, "analysis", "heldout"], sweeps[seed, "analysis", "test"]) for seed in SEEDS]
