"""Training by a recipe with timm's own parts: `train`, its options, its callbacks and what a run leaves behind."""

from timm_gcp.train.callback import Callback, PrintEpochs
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import Run, train

__all__ = ["Callback", "PrintEpochs", "Run", "resolve_args", "train"]
