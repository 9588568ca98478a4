"""The ways to run a random program, and the comparison of each with the oracle."""

from __future__ import annotations

import contextlib
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

import jaxmesh as jm
from jaxmesh import ttnn
from jaxmesh.cli.run_folder import _is_beyond
from jaxmesh.errors import AssumptionWarning, UnsupportedError
from jaxmesh.ttnn import beyond, helpers
from tests.generators.programs.oracle import stays
from tests.generators.programs.program import Program
from tests.generators.programs.values import FLOATS, Array, Copies

Results = list[Any]
"""Flat: full arrays, and dicts from coordinate to array."""


@dataclass
class Stages:
    """One program traced and lowered, with its arguments: what the ways to run it share."""

    program: Program
    function: Any
    given: list[Any]
    args: tuple[Any, ...]
    traced: jm.Traced
    lowered: jm.Lowered

    @staticmethod
    def of(program: Program) -> Stages:
        """Traces and lowers."""
        function, given = program.function(), program.given()
        args = program.call(given)
        traced = function.trace(*args)
        return Stages(program, function, given, args, traced, traced.lower())

    @property
    def leaves(self) -> list[Any]:
        """The arguments in the order of the tree, as a text numbers them."""
        found: list[Any] = jax.tree.leaves(self.args, is_leaf=lambda x: isinstance(x, jm.MeshTensor))
        return found


def _compiled(s: Stages) -> Any:
    return s.lowered.compile()(*s.args)


def _ttir(s: Stages) -> Any:
    return _read(s.traced.as_text(), s)


def _ttnn(s: Stages) -> Any:
    found = _read(s.lowered.as_text(strict=False), s)
    return jax.tree.map(lambda x: _coordinates(x, s), found, is_leaf=_is_leaf)


def _coordinates(x: Any, s: Stages) -> Any:
    """By coordinates of the program's mesh; the texts of TTNN have a mesh of one axis as one row."""
    if len(s.program.world.sizes) > 1 or not _is_leaf(x):
        return x
    shards = x.items() if isinstance(x, dict) else x.shards()
    return {tuple(c)[1:]: np.asarray(shard) for c, shard in shards}


def _read(text: str, s: Stages) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        lowered = jm.from_mlir(text, s.lowered.mesh).lower()
        return lowered.reference(*[_on(lowered.mesh, x) for x in s.leaves])


def _on(mesh: Any, x: Any) -> Any:
    """A tensor of a mesh of one axis on the same devices as one row."""
    if not isinstance(x, jm.MeshTensor) or x.mesh == mesh:
        return x
    held: Any = x.data
    there = jax.device_put(held, jax.sharding.NamedSharding(mesh, held.sharding.spec))
    return jm.MeshTensor(there, mesh, x.varying)


def _python(s: Stages) -> Any:
    """Emitted Python, run on the emulated TTNN, with arguments from memory in place of files."""
    try:
        text = s.lowered.as_text("python")
        further = _is_beyond(text)
    except UnsupportedError:
        text, further = s.lowered.as_text("python", strict=False), True
    with beyond.enabled() if further else contextlib.nullcontext():
        return _run_text(text, s)


def _run_text(text: str, s: Stages) -> Any:
    space: dict[str, Any] = {"__name__": "emitted", "ttnn": ttnn, "utils": Utilities()}
    exec(compile(text.replace("import ttnn\nimport utils\n", "", 1), "<emitted>", "exec"), space)
    name = next(n for n, f in space.items() if isinstance(f, types.FunctionType) and n != "main")
    sizes = s.program.world.sizes
    device = Utilities.DeviceGetter.get_device((1,) * (2 - len(sizes)) + tuple(sizes))
    return [_coordinates(_emulated(x), s) for x in space[name]([_input(x, device) for x in s.leaves])]


class Utilities:
    """What emitted Python takes from the file beside it."""

    class DeviceGetter:
        """The mesh device."""

        @staticmethod
        def get_device(mesh_shape: Sequence[int], fabric_config: Any = None) -> Any:
            """A device of a shape."""
            return ttnn.open_mesh_device(mesh_shape=ttnn.MeshShape(list(mesh_shape)))


def _input(x: Any, device: Any) -> Any:
    if not isinstance(x, jm.MeshTensor):
        return helpers.from_numpy(x)
    rows = [helpers.from_numpy(np.asarray(shard)) for _, shard in x.shards()]
    moved = ttnn.to_device(ttnn.from_host_shards(rows, ttnn.MeshShape(list(device.shape))), device=device)
    # The real library tilizes no bytes.
    return moved if np.dtype(x.dtype).itemsize == 1 and x.dtype != np.bool_ else ttnn.to_layout(moved, ttnn.Layout.TILE)


def _emulated(x: Any) -> Any:
    return x if isinstance(x, jm.MeshTensor) else helpers.to_numpy(x)


@dataclass(frozen=True)
class Form:
    """A way to run a program; `text` of those that print it first, which some programs cannot be."""

    run: Callable[[Stages], Any]
    text: bool = False


FORMS: Mapping[str, Form] = {
    "TTIR-level reference run": Form(lambda s: s.traced.reference(*s.args)),
    "TTNN-level reference run": Form(lambda s: s.lowered.reference(*s.args)),
    "compiled program": Form(_compiled),
    "call": Form(lambda s: s.function(*s.args)),
    "emitted Python": Form(_python, text=True),
    "TTIR text read back": Form(_ttir, text=True),
    "TTNN text read back": Form(_ttnn, text=True),
}
"""Every way, by the name that reports use."""


# --- comparison ------------------------------------------------------------------------------------------------------


def _is_leaf(x: Any) -> bool:
    held: Any = x
    return isinstance(x, jm.MeshTensor) or (isinstance(held, dict) and any(isinstance(k, tuple) for k in held))  # pyright: ignore[reportUnknownVariableType]


def flat(results: Any) -> Results:
    """Results of any way to run."""
    return [_held(x) for x in jax.tree.leaves(results, is_leaf=_is_leaf)]


def _held(x: Any) -> Any:
    if isinstance(x, jm.MeshTensor):
        return {tuple(c): np.asarray(s) for c, s in x.shards()}
    if _is_leaf(x):
        return {tuple(c): np.asarray(s) for c, s in x.items()}
    return np.asarray(x)


def differences(program: Program, found: Results, wanted: Sequence[Copies]) -> list[str]:
    """What is wrong with results; each line says where, and both values."""
    if len(found) != len(wanted):
        return [f"{len(found)} results, expected {len(wanted)}"]
    lines: list[str] = []
    rows = zip(program.results, found, wanted, program.exact, program.result_axes(), strict=True)
    for name, got, want, exact, axes in rows:
        if stays(program.world, axes) and not isinstance(got, dict):
            lines.append(f"{name} differs between devices, but the result is one full array")
            continue
        held: Copies = cast("Copies", got) if isinstance(got, dict) else cast("Copies", dict.fromkeys(want, got))
        if set(held) != set(want):
            lines.append(f"{name} is held by {sorted(held)}, expected {sorted(want)}")
            continue
        for c, x in want.items():
            why = _apart(held[c], x, exact)
            if why:
                lines.append(f"{name} at {c}: {why}")
                break
    return lines


_EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _apart(got: Array, want: Array, exact: bool) -> str | None:
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
    if exact or got.dtype.name not in FLOATS:
        return None if np.array_equal(got, want) else f"got {_short(got)}, expected {_short(want)}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    # Rounding of the type, for a chain of operations.
    limit = 256 * _EPSILON[got.dtype.name] * max(1.0, float(np.abs(b).max(initial=0)))
    apart = float(np.abs(a - b).max(initial=0))
    if apart <= limit:
        return None
    return f"{apart:.3g} apart, allowed {limit:.3g}: got {_short(got)}, expected {_short(want)}"


def _short(x: Any) -> str:
    return np.array2string(x, threshold=40, edgeitems=4, separator=",").replace("\n", "")


# --- all of it -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What running a program in some ways showed."""

    ran: list[str]
    unsaid: list[str]
    failures: list[str]


def check(program: Program, forms: Sequence[str] = tuple(FORMS)) -> Report:
    """Runs a program in the given ways and compares each with the oracle."""
    report = Report([], [], [])
    wanted = program.expected()
    try:
        stages = Stages.of(program)
    except Exception as error:
        report.failures.append(f"tracing and lowering: {type(error).__name__}: {error}")
        return report
    for name in forms:
        form = FORMS[name]
        try:
            found = flat(form.run(stages))
        except Exception as error:
            if form.text and program.dynamic and isinstance(error, UnsupportedError):
                report.unsaid.append(name)
            else:
                report.failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        report.ran.append(name)
        report.failures += [f"{name}: {line}" for line in differences(program, found, wanted)]
    return report
