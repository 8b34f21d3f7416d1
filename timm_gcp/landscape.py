"""Loss Lipschitzness and gradient predictiveness, Section 3.2 and Appendix I: `timm-gcp landscape` and its functions.

`probe` is the measurement, `LandscapeCallback` makes it during training, `range_table` and `plot_landscape` show it.
"""

from __future__ import annotations

from timm_gcp.landscape_command import add_arguments, main
from timm_gcp.landscape_plot import plot_landscape
from timm_gcp.landscape_probe import Landscape, equal_steps, largest_stable_step, probe
from timm_gcp.landscape_records import (
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
    "add_arguments",
    "equal_steps",
    "largest_stable_step",
    "main",
    "plot_landscape",
    "probe",
    "range_table",
    "read_records",
    "step_range",
    "write_records",
]
