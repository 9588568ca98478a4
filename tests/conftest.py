"""The one place where the suite's devices are emulated, and the sizes of its random parts."""

from __future__ import annotations

import os

import hypothesis
import pytest

import jaxmesh as jm

DEVICES = 16
jm.emulate(DEVICES)

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=None, help="cases per random test, instead of its own number")


def pytest_configure(config: pytest.Config) -> None:
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)
