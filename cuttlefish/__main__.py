"""`python -m cuttlefish`."""

import sys

from cuttlefish.cli import main

sys.exit(main())
