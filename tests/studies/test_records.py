"""Records of a study in one file: nothing lost, the same bytes each time, and nothing written over."""

from dataclasses import replace

import pytest

from recurtrace.assets import TINY_BASE
from recurtrace.errors import RecurTraceError
from recurtrace.report.workspace import read_workspace
from studies.records import opened, pack, unpack
from tests.report.test_report import records


@pytest.fixture
def folder(tmp_path):
    for seed in range(2):
        records(tmp_path / "study" / "evaluations" / "full" / f"seed-{seed}", 0.5, ["1"], "base")
    (tmp_path / "study" / "stages").mkdir()
    (tmp_path / "study" / "stages" / "data.json").write_text("{}")
    (tmp_path / "study" / "runs" / "full" / "seed-0" / "model").mkdir(parents=True)
    (tmp_path / "study" / "runs" / "full" / "seed-0" / "model" / "model.safetensors").write_bytes(b"large")
    return tmp_path / "study"


def test_a_report_reads_the_archive_as_it_reads_the_folder(folder, tmp_path):
    assert pack(folder, tmp_path / "one.tar.xz") == 5  # two manifests, two files of records, one stage
    pack(folder, tmp_path / "two.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    with opened(tmp_path / "one.tar.xz") as unpacked:
        assert replace(read_workspace(unpacked), folder=folder) == read_workspace(folder)
    assert not unpacked.exists()
    with opened(folder) as same:
        assert same == folder


def test_an_archive_does_not_say_where_things_lay(folder, tmp_path):
    mine = tmp_path / "models" / "mine"
    recipe = f'{{"model": "{TINY_BASE}", "base": "{mine}", "out": "{folder}/x"}}'
    (folder / "runs" / "full" / "seed-0" / "recipe.json").write_text(recipe)
    pack(folder, tmp_path / "one.tar.xz", {mine: "someone/theirs"})
    with opened(tmp_path / "one.tar.xz") as unpacked:
        found = (unpacked / "runs" / "full" / "seed-0" / "recipe.json").read_text()
    assert found == '{"model": "recurtrace/assets/tiny-base", "base": "someone/theirs", "out": "runs/study/x"}'


def test_what_is_there_is_not_written_over(folder, tmp_path):
    pack(folder, tmp_path / "one.tar.xz")
    with pytest.raises(RecurTraceError, match="exists; unpack the archive into another folder"):
        unpack(tmp_path / "one.tar.xz", folder)
    (tmp_path / "broken.tar.xz").write_bytes((tmp_path / "one.tar.xz").read_bytes()[:200])
    with pytest.raises(RecurTraceError, match="is not an archive of records"):
        unpack(tmp_path / "broken.tar.xz", tmp_path / "new")
    with pytest.raises(RecurTraceError, match="holds nothing to report on"):
        pack(tmp_path / "study" / "runs", tmp_path / "none.tar.xz")
