"""`python -m faststeal` is the command `faststeal`."""

import sys

from faststeal.cli import main

sys.exit(main())
