"""Loss Lipschitzness and gradient predictiveness, Section 3.2 and Appendix I.

`probe` is the measurement, `LandscapeCallback` makes it during training, `range_table` and `plot_landscape` show it.
"""

from __future__ import annotations

from timm_gcp.landscape.plot import plot_landscape
from timm_gcp.landscape.probe import Landscape, equal_steps, largest_stable_step, probe
from timm_gcp.landscape.records import (
    PAPER_EVERY,
    PAPER_RANGES,
    LandscapeCallback,
    Record,
    StableStepCallback,
    range_table,
    read_records,
    step_range,
    write_records,
)

__all__ = [
    "PAPER_EVERY",
    "PAPER_RANGES",
    "Landscape",
    "LandscapeCallback",
    "Record",
    "StableStepCallback",
    "equal_steps",
    "largest_stable_step",
    "plot_landscape",
    "probe",
    "range_table",
    "read_records",
    "step_range",
    "write_records",
]
