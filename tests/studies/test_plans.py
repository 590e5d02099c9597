"""The plans on docs/reproducing.md are what `recurtrace run --dry-run` says now."""

import pytest

from recurtrace.model.families import QWEN3
from studies.plans import scale_plan
from tests.pages import ROOT


@pytest.mark.parametrize(
    "scale", [pytest.param(name, marks=[] if name == "4B" else pytest.mark.slow) for name in QWEN3]
)
def test_the_page_has_the_plan_of_each_scale(scale):
    page = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    assert scale_plan(scale) in page, "python -m studies.plans --page docs/reproducing.md"
