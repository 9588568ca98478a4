"""Functions of `ttnn` that are composed of others, with the parameters of the real ones."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from jaxmesh.tensor.tensor_base import TensorBase
from jaxmesh.ttnn.call_arguments import HOW, Binder
from jaxmesh.ttnn.conversion import convert_operands, finish, finish_one, write_result
from jaxmesh.ttnn.functions import COMPOSED
from jaxmesh.ttnn.refusals import computing, results_of
from jaxmesh.ttnn.rules.outputs import PARAMETERS as OUTPUTS


class Composed:
    """A function composed of others, callable as in `ttnn`; the arguments it does not know must be left out."""

    def __init__(self, callee: str, compute: Callable[..., Any], **also: str) -> None:
        self.callee = callee
        self.__name__ = callee.rpartition(".")[2]
        self.__qualname__, self.__module__, self.__doc__ = self.__name__, "jaxmesh.ttnn", compute.__doc__
        self._compute = compute
        COMPOSED[callee] = self
        self._binder = binder = Binder(callee, also)
        self.__signature__ = binder.signature
        known = [n for n in inspect.signature(compute).parameters if n in binder.slots]
        self._known = [(n, binder.slots[n]) for n in known]
        self._output = next((binder.slots[n] for n in OUTPUTS if n in binder.slots and n not in known), None)
        self._others = [
            (n, i) for n, i in binder.slots.items() if n not in known and n not in HOW and i != self._output
        ]

    def __repr__(self) -> str:
        return f"<{self.callee}{self.__signature__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Performs the function; see `help` of it for its arguments."""
        values = self._binder.bind(args, kwargs)
        for name, slot in self._others:
            self._binder.check_default(name, values[slot])
        results = results_of(self.callee, {name: values[slot] for name, slot in self._binder.slots.items()})
        given = {name: values[slot] for name, slot in self._known}
        if results and results[0].computed is not None:
            # A number beside a tensor is an operand; others say what is computed.
            names = [n for n, x in given.items() if n.startswith("input") or isinstance(x, TensorBase)]
            converted = convert_operands([given[n] for n in names], results[0].computed)
            given |= dict(zip(names, converted, strict=True))
        # Where no results are declared, the rules of the composing functions determine the types.
        with contextlib.nullcontext() if results == [] else computing():
            result = self._compute(**given)
        if results:
            several: Any = result
            result = finish(several, results) if isinstance(result, list) else finish_one(result, results[0])
        if self._output is not None and values[self._output] is not None:
            return write_result(self.callee, values[self._output], result)
        return result


def composed(callee: str | None = None, **also: str) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that gives a function the parameters of the real one; `also` as of `Binder`."""

    def decorate(compute: Callable[..., Any]) -> Any:
        return Composed(callee or f"ttnn.{compute.__name__}", compute, **also)

    return decorate
