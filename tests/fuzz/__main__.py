"""``python -m tests.fuzz --seconds 600``: the long run of ``make fuzz``."""

from __future__ import annotations

import sys
import warnings

from tests.fuzz.run import main

warnings.simplefilter("error")
sys.exit(main())
