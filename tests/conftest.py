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
    parser.addoption(
        "--every",
        action="store_true",
        help="every program of the suite in every way, and every mesh; the suite alone takes a part of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--every"):
        os.environ["JAXMESH_EVERY"] = "1"
    cases = config.getoption("--cases")
    if cases is not None:
        # Workers of pytest-xdist inherit the environment; strategies read it when they are imported.
        os.environ["JAXMESH_CASES"] = str(cases)
