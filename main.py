"""The command `retexo`, from a checkout: python main.py."""

import sys

from retexo.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
