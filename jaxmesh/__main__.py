"""`python -m jaxmesh`."""

import sys

from jaxmesh.cli import main

if __name__ == "__main__":
    sys.exit(main())
