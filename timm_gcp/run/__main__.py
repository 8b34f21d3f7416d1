"""The entry of `python -m timm_gcp.run`."""

import sys

from timm_gcp.run import main

sys.exit(main())
