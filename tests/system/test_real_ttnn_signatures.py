"""The parameters of the emulated functions are those of the installed real `ttnn`: names, order, defaults."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from jaxmesh import ttnn
from jaxmesh.ttnn.signatures import expand, signatures, table
from tests.generators.real_ttnn.process import needs_ttnn, run_jobs
from tests.generators.real_ttnn.signature_table import typed
from tests.generators.real_ttnn.signatures import split

OURS = {"ttnn.MeshTensor", "ttnn.BlackholeComputeKernelConfig"}


@functools.cache
def installed() -> dict[str, Any]:
    return {o["callee"]: o for o in run_jobs("signatures", [{"callee": c} for c in sorted(table())])}


@needs_ttnn
def test_the_table_is_what_the_library_declares() -> None:
    differences = {}
    for callee, found in installed().items():
        written = [expand(row) for row in table(found["release"])[callee]]
        declared = [f"({', '.join(map(typed, split(row[1:-1])))})" for row in found["signatures"] or []]
        if written != declared:
            differences[callee] = (written, declared)
    assert not differences


def emulated() -> dict[str, Any]:
    """The functions of the emulated library, by their dotted names."""
    found: dict[str, Any] = {}

    def visit(prefix: str, space: Any) -> None:
        for name in dir(space):
            entry = getattr(space, name)
            if name.startswith("_") or inspect.isclass(entry) or inspect.ismodule(entry):
                continue
            if type(entry).__name__ == "Namespace":
                visit(f"{prefix}{name}.", entry)
            elif callable(entry):
                found[f"{prefix}{name}"] = entry

    visit("ttnn.", ttnn)
    return found


@pytest.mark.parametrize("callee", sorted(emulated()))
def test_every_emulated_function_has_the_real_parameters(callee: str) -> None:
    """Read from the table, which the test above compares with the library."""
    real = signatures(callee)
    assert real, f"{callee} does not exist in the real library"
    function = emulated()[callee]
    found = inspect.signature(function).parameters.values()
    ours = [(p.name, p.kind is p.KEYWORD_ONLY) for p in found]
    assert ours in [[(p.name, p.keyword) for p in overload] for overload in real]
