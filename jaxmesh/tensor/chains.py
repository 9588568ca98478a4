"""Results that are computed when somebody looks at one: chains of ops that run as one program, and reshapes.

Compiling a program takes XLA tens of milliseconds, however small it is, and a program of a model has hundreds of ops of
different shapes. All checks of an op, and the types of its results, are the same as when an op runs at once.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax

from jaxmesh.jaxprs.caches import Cache, is_staged
from jaxmesh.jaxprs.tracing_state import set_within
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import DType, Shape
from jaxmesh.runtime.array_views import check_alive, view
from jaxmesh.runtime.launch import launch

Run = Callable[..., list[jax.Array]]
Step = tuple[Run, tuple[int, ...]]
"""An op, and the numbers of its operands: of a result counted from 0, of an array from the end, -1 and down."""
_LONGEST = 1000
"""Ops of a chain: the time that XLA takes for a program grows faster than their number."""
_programs = Cache[Run](16, "chains of ops")


class Deferred:
    """A result of an op in a chain, stored in a tensor in place of its array.

    Attributes:
      chain, number: the chain, and the number of the result in it.
      array: the array; None until the chain runs.
      shape: the stored shape, mesh dims included.
    """

    __slots__ = ("__weakref__", "array", "chain", "dtype", "number", "shape")

    def __init__(self, chain: Chain, number: int, shape: Shape, dtype: DType) -> None:
        self.chain, self.number, self.shape, self.dtype = chain, number, shape, dtype
        self.array: Any = None

    @property
    def ndim(self) -> int:
        """The rank, mesh dims included."""
        return len(self.shape)

    def compute(self) -> Any:
        """Returns the array; the first time for a result of the chain, the chain runs."""
        if self.array is None:
            self.chain.run()
        return self.array


class Chain:
    """Ops that were called and not run."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._steps: list[Step] = []
        self._arrays: list[jax.Array] = []
        self._number_of: dict[int, int] = {}
        self._results: list[weakref.ref[Deferred]] = []

    def add(self, run: Run, operands: Sequence[object], results: Sequence[tuple[Shape, DType]]) -> list[Deferred]:
        """Appends an op; returns its results, of these stored shapes and element types."""
        if len(self._steps) >= _LONGEST:
            self.run()
        self._steps.append((run, tuple(map(self._number, operands))))
        first = len(self._results)
        made = [Deferred(self, first + i, *kind) for i, kind in enumerate(results)]
        self._results += map(weakref.ref, made)
        return made

    def _number(self, operand: Any) -> int:
        if type(operand) is Deferred:
            if operand.array is None and operand.chain is self:
                return operand.number
            operand = operand.compute()
        number = self._number_of.get(id(operand))
        if number is None:
            self._arrays.append(operand)
            number = self._number_of[id(operand)] = -len(self._arrays)
        return number

    def run(self) -> None:
        """Runs the ops as one program, whose results are the values that a tensor still stores."""
        wanted = [(i, result) for i, there in enumerate(self._results) if (result := there()) is not None]
        key = tuple(self._steps), tuple(i for i, _ in wanted)
        program = _programs.get(key) or _programs.put(key, _program(*key))
        # Tensors keep the results, so they must not be values of a trace.
        with jax.ensure_compile_time_eval() if is_staged() else contextlib.nullcontext():
            arrays = launch(program, *reversed(self._arrays))
        for (_, result), array in zip(wanted, arrays, strict=True):
            result.array = array
        self._reset()


def _program(steps: Sequence[Step], wanted: Sequence[int]) -> Run:
    def chain(*arrays: jax.Array) -> list[jax.Array]:
        values: list[jax.Array] = []
        for run, numbers in steps:
            # Results are counted from the front and arrays from the end.
            values += run(*[arrays[n] if n < 0 else values[n] for n in numbers])
        return [values[n] for n in wanted]

    # Each op rounds to its element type, as it does in a separate program.
    return typed.jit(chain, compiler_options={"xla_allow_excess_precision": False})


_current: ContextVar[Chain | None] = ContextVar("chain of ops", default=None)
current_chain = _current.get


def chained() -> contextlib.AbstractContextManager[None]:
    """Runs ops in chains, where nobody looks at a result in between."""
    return set_within(_current, Chain())


# --- reshapes --------------------------------------------------------------------------------------------------------


def _view(stored: jax.Array) -> list[jax.Array]:
    return [view(stored)]


class LazyReshape:
    """An array to be made from another one when it is first needed: no program starts for a reshape before.

    Half of the ops of an emitted program only reshape. The next op takes the array before the reshape and reshapes it
    in its own program.

    Attributes:
      stored: the array to reshape. Other tensors share it; the user never gets it.
      local: the local shape of the result; None to keep the shape.
      shape: the stored shape of the result, mesh dims included.
    """

    __slots__ = ("__weakref__", "_run", "local", "shape", "stored")

    def __init__(
        self, stored: jax.Array, local: Shape | None = None, shape: Shape | None = None, run: Run = _view
    ) -> None:
        self.stored, self.local, self.shape = stored, local, stored.shape if shape is None else shape
        self._run = run

    @property
    def ndim(self) -> int:
        """The rank of the result, mesh dims included."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.stored.dtype

    def compute(self) -> jax.Array:
        """Returns the array."""
        check_alive(self.stored, "reshape")
        if self.local is not None and not is_staged():
            return launch(self._run, self.stored)[0]
        # The tensor keeps the result, so it must not be a value of a trace. This program is free of collectives and may
        # start beside programs of other threads; JAX may hold locks here.
        with jax.ensure_compile_time_eval():
            return self._run(self.stored)[0]
