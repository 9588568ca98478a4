"""`python -m jaxmesh`."""

import sys

from jaxmesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
