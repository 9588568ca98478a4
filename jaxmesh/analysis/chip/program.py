"""Runs an exported program with its calls on the simulated chip, and beside in the emulation and double precision."""

from __future__ import annotations

import ast
import itertools
import json
import re
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmesh import ttnn
from jaxmesh.analysis.chip import trust
from jaxmesh.analysis.chip.environment import Chip
from jaxmesh.analysis.chip.result import CHIP, TRANSFER, ChipRun, ChipValue
from jaxmesh.analysis.chip.trust import Array, Change
from jaxmesh.analysis.record.metrics import apart
from jaxmesh.dialects.op import Trait
from jaxmesh.dialects.ttnn import OPS
from jaxmesh.emit.export_folder import LOCATIONS
from jaxmesh.jaxprs.typed import typed
from jaxmesh.runtime.progress import progress
from jaxmesh.tensor import beyond
from jaxmesh.tensor.mesh_tensor import PART, MeshTensor
from jaxmesh.tensor.types import StorageType

Names = Mapping[str, Any]
Trusted = Callable[[str, str, str], str]
_FLOAT_TYPE = re.compile(r"(?<=ttnn\.DataType\.)B?FLOAT(16|32)\b")
_CALL = re.compile(r"( +)([\w, ]+ = |)(ttnn\.[\w.]+\(.*\))")
_ELEMENT, _NAME = re.compile(r"\b([A-Za-z_]\w*)\[([0-9]+)\]"), r"\1_at_\2"
_NAMED, _INDEXED = re.compile(r"(\w+)_at_([0-9]+)$"), r"\1[\2]"
_TRAITS = {op.python.callee: op.traits for op in OPS.values()}


def _part(value: Any, number: int = 0) -> Any:
    """Returns a value of a run: a tuple has it on the chip, in the emulation and in double precision."""
    return value[number] if type(value) in (tuple,) else value


def _with_hook(number: int, line: str) -> str:
    """Passes a call of ttnn in a line to a hook: the number of the line, the text of the call, and the names in it."""
    match = _CALL.fullmatch(line)
    if match is None:
        return line
    indent, target, call = match.groups()
    if call.startswith("ttnn.deallocate("):
        return f"{indent}pass"  # The values outlive the run.
    text = _ELEMENT.sub(_NAME, call)  # An element of a list is an operand without the others.
    # The table names the types of the operands in their order.
    used = dict.fromkeys(n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name))
    names = ", ".join(f"{name!r}: {_NAMED.sub(_INDEXED, name)}" for name in used if name not in ("ttnn", "float"))
    return f"{indent}{target}utils.call({number}, {text!r}, {{{names}}})"


def _execute(folder: Path, hook: Callable[[int, str, Names], Any]) -> list[Any]:
    """Runs the program of a folder, whose calls of ttnn a hook computes; returns its results."""
    utils: Any = types.ModuleType("utils")
    for name, module in (("utils.py", utils.__dict__), ("main.py", main := dict[str, Any]())):
        lines = (folder / name).read_text(encoding="utf-8").replace("import ttnn\n", "\n", 1).splitlines()
        text = "\n".join(itertools.starmap(_with_hook, enumerate(lines, 1)) if module is main else lines)
        module |= {"ttnn": ttnn, "__file__": str(folder / name)}
        exec(compile(text.replace("\nimport utils\n", "\n\n", 1), folder / name, "exec"), module)
    tests: Any = utils.is_true
    utils.is_true, utils.report = lambda v: tests(_part(v)), lambda found, *_: found  # pyright: ignore[reportUnknownLambdaType]
    utils.call, utils.arguments, main["utils"] = hook, dict, utils
    return [_part(value) for value in main["main"]()]


def _compute(text: str, names: Names, change: Change | None = None) -> Any:
    """Computes a call in the emulation, or in double precision for changed operands."""
    if change is not None:
        text, names = _FLOAT_TYPE.sub("FLOAT64", text), {k: _widen(v, change) for k, v in names.items()}
    with jax.enable_x64(change is not None):
        found = eval(text, {"ttnn": ttnn, **names})
        for tensor in _on_devices(found):
            _ = tensor.data  # Deferred work would be done in the types of a later time.
        return list(found) if type(found) in (list, tuple) else found


def _listed(value: Any) -> list[Any]:
    return value if type(value) in (list,) else [value]


def _on_devices(value: Any) -> list[MeshTensor]:
    return [t for t in _listed(value) if isinstance(t, MeshTensor) and t.storage_type() is not StorageType.HOST]


def _with_data(tensor: MeshTensor, data: Array) -> MeshTensor:
    stored = typed.device_put(data, tensor.data.sharding)
    return MeshTensor(stored, tensor.mesh, tensor.varying, tensor.topology, tensor.storage)


def _widen(value: Any, change: Change) -> Any:
    """Returns a tensor of floats on several devices as float64, with changed values, and anything else unchanged."""
    if not isinstance(value, MeshTensor) or not jax.numpy.issubdtype(value.data.dtype, np.floating):
        return value
    return _with_data(value, change(np.asarray(value.data, np.float64)))


def _shards(tensor: MeshTensor) -> dict[tuple[int, ...], Array]:
    return {tuple(place): np.asarray(shard) for place, shard in tensor.shards()}


def _stacked(value: Any) -> list[Array]:
    """Returns the values of each tensor on the devices, as an array [devices, *local shape]."""
    return [np.stack(list(_shards(t).values())) for t in _on_devices(value)]


def _from_chip(like: MeshTensor, found: Array) -> MeshTensor:
    """Returns a tensor with the chip's values, an array [devices, *local shape]."""
    data, axes = np.empty(like.data.shape, like.data.dtype), like.mesh.axis_names
    for place, values in zip(_shards(like), found, strict=True):
        data[(..., *(place[axes.index(a)] for a in like.varying))] = values
    return _with_data(like, data)


def _sent(value: Any, place: tuple[int, ...]) -> Any:
    """Returns one device's tensor as the runner takes it, bfloat16 and bool as float32; None for the mesh device."""
    if not isinstance(value, MeshTensor):
        return None
    array, dtype = _shards(value)[place], value.data.dtype.name
    stored = "float32" if dtype in ("bfloat16", "bool") else dtype
    return np.ascontiguousarray(array, stored).tobytes(), stored, array.shape, dtype.upper(), value.layout.name


class _ChipCall:
    """One call: its text, the names in it, its result in the emulation, the exact arrays, outcomes, and seconds."""

    def __init__(self, text: str, names: Names) -> None:
        self._text, self._names, callee = text, names, text.partition("(")[0]
        self._traits = _TRAITS.get(callee, frozenset[Trait]())
        self._formats = "float32", "tf32" if callee.rpartition(".")[2] in trust.MATRIX else "polynomial"
        self.result = _compute(text, names)
        self.tensors, self._operands = _on_devices(self.result), _on_devices(list(names.values()))
        dtypes = "+".join(dict.fromkeys(t.data.dtype.name for t in self._operands or self.tensors))
        self.key = callee, dtypes, trust.size_of([t.shape for t in (*self._operands, *self.tensors)])
        self.outcomes, self.seconds = [""] * len(self.tensors), 0.0
        self.exact = _stacked(_compute(text, names, np.asarray)) if self.tensors else []

    def rounding(self, number: int) -> tuple[Array, Sequence[str], Callable[[Change], Array]]:
        dtypes, exact = {t.data.dtype.name for t in (*self._operands, *self.tensors)}, self.exact[number]
        copies = exact.dtype.kind != "f" or (Trait.MOVES in self._traits and len(dtypes) == 1)
        formats = () if copies else ("bfloat16",) if "bfloat16" in dtypes else self._formats
        return exact, formats, lambda change: _stacked(_compute(self._text, self._names, change))[number]

    def compute(self, chip: Chip, trusted: Trusted) -> str:
        """Computes a trusted call on the chip, once for equal operands; returns where it was computed."""
        tensors = (*self._operands, *self.tensors)
        on_host = not all(_on_devices(v) or isinstance(v, ttnn.MeshDevice) for v in self._names.values())
        moves = self._traits & {Trait.COLLECTIVE, Trait.SENDS, Trait.TRANSFERS}
        if on_host or moves or not self.tensors or any(t.varying == (PART,) for t in tensors):
            return TRANSFER
        if (said := trusted(*self.key)) not in trust.RIGHT:
            return said
        found: list[list[Array]] = []
        known: dict[tuple[Any, ...], list[Array]] = {}
        for place in _shards(self.tensors[0]):
            sent = {name: _sent(value, place) for name, value in self._names.items()}
            if (key := tuple(sent.values())) not in known:
                failed, known[key], took = chip.call(self._text, sent)
                self.seconds += took
                if failed:
                    return failed
            found.append(known[key])
        arrays = [np.stack(values) for values in zip(*found, strict=True)]
        self.outcomes = [trust.explain(a, *self.rounding(n)) for n, a in enumerate(arrays)]
        if trust.WRONG in self.outcomes:
            return f"{trust.WRONG}: no rounding explains it"
        self.tensors = [_from_chip(t, a) for t, a in zip(self.tensors, arrays, strict=True)]
        self.result = self.tensors if type(self.result) is list else self.tensors[0]
        return CHIP


def run_on_chip(folder: Path, chip: Chip, trusted: Trusted = trust.outcome) -> ChipRun:
    """Runs an exported folder for Python with its calls on the simulated chip.

    Calls run there whose function, element types and class of shapes `trusted` gives an outcome of `trust.RIGHT` for. A
    result that no rounding explains is replaced by the emulation's.
    """
    begin, values = time.monotonic(), list[ChipValue]()
    sources: Any = json.loads((folder / LOCATIONS).read_text(encoding="utf-8"))

    def hook(line: int, text: str, names: Names) -> Any:
        own, *others = ({k: _part(v, n) for k, v in names.items()} for n in range(3))
        call = _ChipCall(text, own)
        shown.step(call.key[0])
        place = call.compute(chip, trusted)
        results = call.result, _compute(text, others[0]), _compute(text, others[1], np.asarray)
        for found, *golden, outcome in zip(*map(_stacked, results), call.exact, call.outcomes, strict=True):
            emulated, exact, alone = (apart(g.astype(np.float64), found.astype(np.float64)) for g in golden)
            loss, source = alone.largest / (alone.scale or 1.0), sources.get(str(line), "")
            values.append(ChipValue(call.key, source, place, outcome, loss, call.seconds, found, emulated, exact))
        made = list(zip(*map(_listed, results), strict=True))
        return made if type(call.result) is list else made[0]

    with progress("calls on the simulated chip") as shown, beyond.enabled():
        results = _execute(folder, hook)
    return ChipRun(results, values, chip.versions, time.monotonic() - begin)
