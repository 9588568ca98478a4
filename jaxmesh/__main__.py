"""`python -m jaxmesh`."""

import sys

from jaxmesh.cli.main import command

if __name__ == "__main__":
    sys.exit(command())
