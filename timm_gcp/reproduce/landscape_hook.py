"""Importing this module probes Fig. 2's landscape in train.py: `--device-modules … timm_gcp.reproduce.landscape_hook`.

The variable TIMM_GCP_LANDSCAPE says how; see `landscape_train_py`.
"""

from timm_gcp.reproduce.landscape_train_py import from_environment, install

install(from_environment())
