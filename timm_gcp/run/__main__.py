"""The entry of `python -m timm_gcp.run`."""

import sys

from timm_gcp.common.freed_memory import keep_freed_memory
from timm_gcp.run import main

keep_freed_memory()
sys.exit(main())
