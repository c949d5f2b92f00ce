"""`python -m layactl`."""

import sys

from layactl.cli.app import main

sys.exit(main())
