"""`python -m entrypoint`: the container's start, the same as `appliance serve`."""

import sys

from entrypoint.main import main

if __name__ == "__main__":
    sys.exit(main())
