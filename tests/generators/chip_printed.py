"""Calls of ttnn that programs of several functions print, and that the table of the simulated chip does not have.

`python -m tests.generators.chip_printed` runs the suite, plain programs, programs of other authors and models of
libraries in the emulation, and prints the smallest call of each kind that neither `trust.txt` nor `CALLS` has.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.analysis.chip import program, trust
from jaxmesh.errors import JaxmeshError
from jaxmesh.tensor import beyond
from tests.generators.chip_calls import CALLS, made
from tests.generators.quick_compilation import quick_compilation

Key = tuple[str, str, str]
NO_CHIP: Any = None


def printed(lowered: Any, *args: Any) -> Mapping[Key, tuple[str, str]]:
    """Returns the calls on the devices that a program makes, with the operands of the smallest call of each kind."""
    found: dict[Key, tuple[int, str, str]] = {}

    def hook(line: int, text: str, names: Mapping[str, Any]) -> Any:
        call = program._ChipCall(text, names)

        def told(*key: str) -> str:
            size = sum(math.prod(t.shape) for t in (*call._operands, *call.tensors))
            row = size, text, ", ".join(f"{n} {shown(v)}" for n, v in names.items())
            found[call.key] = min(found.get(call.key, row), row)
            return trust.NOT_TRIED

        call.compute(NO_CHIP, told)
        return call.result

    with tempfile.TemporaryDirectory() as folder, beyond.enabled():
        lowered.export(folder, *args, languages=("python",))
        program._execute(Path(folder), hook)
    return {key: (text, operands) for key, (_, text, operands) in found.items()}


def shown(value: Any) -> str:
    """Returns an operand as `CALLS` describe it."""
    if not isinstance(value, jm.MeshTensor):
        return "device"
    shape = ",".join(map(str, value.shape))
    return f"{value.data.dtype.name}[{shape}]" + " rows" * (value.layout is ttnn.Layout.ROW_MAJOR)


def programs() -> Iterator[tuple[str, Callable[[], Any], Sequence[Any]]]:
    """Yields programs of several functions: their names, how they are lowered, and their arguments."""
    from tests.generators.plain_programs import CASES, jitted
    from tests.generators.second_blind.programs import ALL
    from tests.generators.suite.all_programs import PROGRAMS
    from tests.models.zoo import AXES, ZOO, ways

    for entry in PROGRAMS:
        yield entry.name, lambda e=entry: e.lowered, entry.args()
    for case in CASES:
        yield case.name, lambda c=case: jitted(c).lower(*c.args), case.args
    for name, make in ALL.items():
        own = make(0)
        yield name, lambda m=own: jm.jit(m.fun, mesh=m.mesh, in_shardings=m.specs).lower(*m.args), own.args
    mesh = jm.make_mesh((2, 2), AXES)
    for name, model in ZOO.items():
        with contextlib.suppress(ImportError):
            function, *given = model()
            yield name, lambda f=function, g=given: ways(f, mesh)["plain jit"].lower(*g), given


def main() -> None:
    """Prints the kinds of calls that neither the table nor `CALLS` has."""
    jm.emulate(16)
    missing: dict[Key, str] = {}
    with quick_compilation(), beyond.enabled():
        known = {made(*call, 0).key for call in CALLS}
        for name, lower, args in programs():
            try:
                calls = printed(lower(), *args)
            except JaxmeshError as error:
                print(f"{name}: {type(error).__name__}")
                continue
            for key, call in calls.items():
                if key not in known and trust.outcome(*key) == trust.NOT_TRIED and key not in missing:
                    missing[key] = name
                    print(key, call, name, flush=True)
    print(f"{len(missing)} kinds of calls are not tried")


if __name__ == "__main__":
    main()
