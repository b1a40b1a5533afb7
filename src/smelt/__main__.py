"""``python -m smelt`` is ``smelt``."""

import sys

from smelt.cli import main

if __name__ == "__main__":
    sys.exit(main())
