"""One function per stage: settings in, folder and manifest out, no printing.

    from recurtrace import stages

    stages.sweep(model="looped", data="data/mixture", split="train", count=5000, out="sweeps/train")
    stages.distill(model="looped", sweep="sweeps/train")

Commands, pipeline and studies call these. A stage takes its settings as keywords, or whole (`SweepSettings(…)`); a
setting that cannot be gets a sentence. Heavy imports wait until a stage runs.
"""

from recurtrace.stages.calibrate import CalibrateSettings, calibrate
from recurtrace.stages.compare import CompareSettings, compare
from recurtrace.stages.cost import CostSettings, cost
from recurtrace.stages.data import DataSettings, data
from recurtrace.stages.distill import DistillSettings, distill
from recurtrace.stages.evaluate import EvaluateSettings, evaluate
from recurtrace.stages.explore import ExploreSettings, explore
from recurtrace.stages.probe import ProbeSettings, probe
from recurtrace.stages.report import ReportSettings, report
from recurtrace.stages.sweep import SweepSettings, sweep
from recurtrace.stages.trace import TraceSettings, trace
from recurtrace.stages.train import pretrain, train

__all__ = [
    "CalibrateSettings",
    "CompareSettings",
    "CostSettings",
    "DataSettings",
    "DistillSettings",
    "EvaluateSettings",
    "ExploreSettings",
    "ProbeSettings",
    "ReportSettings",
    "SweepSettings",
    "TraceSettings",
    "calibrate",
    "compare",
    "cost",
    "data",
    "distill",
    "evaluate",
    "explore",
    "pretrain",
    "probe",
    "report",
    "sweep",
    "trace",
    "train",
]
