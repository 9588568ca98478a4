"""Calls of a function of `jaxmesh.jit`: static and donated arguments, leaves, checks of what JAX has refused.

Static arguments are a part of a cache's key, which distinguishes type and bits, also inside tuples and dataclasses:
Python takes `1`, `True` and `1.0` for equal, and `0.0` and `-0.0`, and so does JAX's cache inside a tuple; a program
traced for one is not the program of the other.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import numpy as np

from jaxmesh.errors import ArgumentTypeError, ArgumentValueError
from jaxmesh.frontends.jax.trace import abstract
from jaxmesh.jaxprs.trees import parameter_names, show_path
from jaxmesh.jaxprs.typed import typed
from jaxmesh.jaxprs.untyped import PyTree
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.arguments import check_devices, check_donated, check_leaf, flatten, prepare_tree
from jaxmesh.tensor.mesh_tensor import is_tensor
from jaxmesh.validate import as_tuple, is_hashable, quote

_NUMBERS = (float, complex, np.inexact)
_COMMON = frozenset(map(np.dtype, "?bBhHiIlLefd"))
"""Types of elements that JAX has."""


@dataclass(frozen=True, slots=True)
class ArgumentSet:
    """Some arguments of a function, by position and by name: the static ones, or the donated ones.

    Attributes:
      argnums: the positions.
      argnames: the names.
      has_names: False for a builtin function without a signature.
    """

    argnums: frozenset[int] = field(default_factory=frozenset[int])
    argnames: frozenset[str] = field(default_factory=frozenset[str])
    has_names: bool = True

    @staticmethod
    def of(
        fun: Callable[..., Any],
        argnums: int | Iterable[int] | None,
        argnames: str | Iterable[str] | None,
        kind: str = "static",
    ) -> ArgumentSet:
        """Derives names from positions and positions from names by the function's signature, as `jax.jit`.

        Raises:
          ArgumentTypeError: a position is not an integer, or a name is not a string.
          ArgumentValueError: the function has no such argument.
        """
        names, numbers = _names(f"{kind}_argnames", argnames), _numbers(f"{kind}_argnums", argnums)
        try:
            signature = inspect.signature(fun)
        except (TypeError, ValueError):
            if names:
                raise ArgumentValueError(
                    f"{kind}_argnames {sorted(names)} are given for {quote(fun)}, which does not tell the names of its "
                    f"arguments; give {kind}_argnums."
                ) from None
            return ArgumentSet(frozenset(numbers), frozenset(names), has_names=False)
        parameters = list(signature.parameters.values())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        _check_known(parameters, len(positional), names, numbers, kind, getattr(fun, "__name__", "the function"))
        if all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in parameters):
            numbers = {n + len(positional) if n < 0 else n for n in numbers}
        named = {positional[n] for n in numbers if 0 <= n < len(positional)}
        numbered = {positional.index(n) for n in names if n in positional}
        # Where both are given they may differ, as in JAX.
        numbers |= numbered if argnums is None else set[int]()
        return ArgumentSet(frozenset(numbers), frozenset(names | named if argnames is None else names))

    def __bool__(self) -> bool:
        return bool(self.argnums or self.argnames)

    def marks(self, count: int) -> list[bool]:
        """Returns True per positional argument that is in the set; negative positions count from the call's end."""
        at = {n + count if n < 0 else n for n in self.argnums}
        return [i in at for i in range(count)]

    def split(self, args: Sequence[object], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the dynamic arguments alone."""
        dynamic = [a for a, static in zip(args, self.marks(len(args)), strict=True) if not static]
        return dynamic, {k: v for k, v in kwargs.items() if k not in self.argnames}

    def join(
        self, args: Sequence[object], kwargs: dict[str, Any], dynamic: Sequence[Any], dynamic_kw: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Returns the full arguments, with the dynamic arguments replaced."""
        rest = iter(dynamic)
        joined = [a if static else next(rest) for a, static in zip(args, self.marks(len(args)), strict=True)]
        return joined, {k: dynamic_kw.get(k, v) for k, v in kwargs.items()}


def _names(what: str, given: Any) -> set[str]:
    if given is None or isinstance(given, str):
        return set[str]() if given is None else {given}
    names = as_tuple(what, given, "the name of an argument or a row of names")
    if not all(isinstance(n, str) for n in names):
        raise ArgumentTypeError(f"{what} takes the name of an argument or a row of names, got {quote(given)}.")
    return set(names)


def _numbers(what: str, given: Any) -> set[int]:
    if given is None:
        return set()
    try:
        return {operator.index(given)}
    except TypeError:
        numbers = as_tuple(what, given, "the position of an argument or a row of positions")
    try:
        return {operator.index(n) for n in numbers}
    except TypeError:
        raise ArgumentTypeError(
            f"{what} takes the position of an argument or a row of positions, got {quote(given)}."
        ) from None


def _check_known(
    parameters: Sequence[inspect.Parameter], count: int, names: set[str], numbers: set[int], kind: str, name: str
) -> None:
    """Checks that a function has the arguments that are named and numbered."""
    kinds = {p.kind for p in parameters}
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = sorted(names - set(known))
    if unknown and (inspect.Parameter.VAR_KEYWORD not in kinds or any(p.name in unknown for p in parameters)):
        raise ArgumentValueError(
            f"{kind}_argnames names the argument {unknown[0]!r}, but those of {name} that go by name are: "
            f"{', '.join(map(repr, known)) or 'none'}."
        )
    beyond = sorted(n for n in numbers if not -count <= n < count)
    if beyond and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ArgumentValueError(
            f"{kind}_argnums names position {beyond[0]}, but {name} takes {count} arguments by position; allowed: "
            + (f"{-count} to {count - 1}." if count else "none.")
        )


class Static:
    """A static argument; equal to another one only if a program cannot tell them apart."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = key_of(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value)


_PLAIN = frozenset[type[Any]]({int, bool, str, bytes, type(None), type, types.FunctionType, Static})
"""The types of which JAX's cache tells all values apart that a program can."""


def key_of(value: object) -> Hashable:
    """Returns what stands for a value in a key; it has a hash if the value has one.

    >>> key_of((1, 0.0)) == key_of((True, 0.0)), key_of(0.0) == key_of(-0.0), key_of((1, 2)) == key_of((1, 2))
    (False, False, True)
    """
    kind = type(value)
    if isinstance(value, _NUMBERS):
        return kind, np.asarray(value).tobytes()
    if isinstance(value, tuple):
        return kind, tuple(map(key_of, cast("tuple[object, ...]", value)))
    if isinstance(value, frozenset):
        return kind, frozenset(map(key_of, cast("frozenset[object]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple(key_of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare)
        # A class that defines a hash may hold unhashable values.
        return (kind, value, fields) if is_hashable(fields) else (kind, value)
    return kind, value


@dataclass(frozen=True, slots=True)
class UserCall:
    """A call.

    Attributes:
      fun: the function of its dynamic arguments.
      args: all positional arguments, static ones marked.
      kwargs: all keyword arguments.
      leaves: the leaves of the dynamic arguments.
      tree: their tree, `(args, kwargs)`.
      paths: the key path to each.
      donated: the numbers of the leaves that are donated.
    """

    fun: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tree: PyTree
    paths: list[Any]
    donated: tuple[int, ...]


class Calls:
    """The calls of one function."""

    def __init__(self, fun: Callable[..., Any], static: ArgumentSet, donated: ArgumentSet) -> None:
        self.fun, self.static, self.donated = fun, static, donated
        # No static and no donated arguments: calls take the fast path.
        self.simple = not (static or donated)

    @functools.cached_property
    def unmarked(self) -> Callable[..., Any]:
        """The function of arguments whose static ones are marked, to be looked up by type too."""
        if not self.static:
            return self.fun

        @functools.wraps(self.fun)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.fun(*map(_value, args), **{k: _value(x) for k, x in kwargs.items()})

        return run

    def arrange(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Returns a call with the static arguments marked that JAX's cache does not tell apart.

        Raises:
          VerifyError: a donated argument is passed twice.
        """
        if self.donated:
            leaves = jax.tree.leaves((args, kwargs))
            if len(set(map(id, leaves))) < len(leaves):
                call = self.flatten(args, kwargs)
                check_donated(call.leaves, call.donated, call.paths, self.parameters(call.args))
        for n in self.static.argnums:
            if -len(args) <= n < len(args) and type(args[n]) not in _PLAIN:
                return self.mark(args, kwargs)
        for name in self.static.argnames:
            if name in kwargs and type(kwargs[name]) not in _PLAIN:
                return self.mark(args, kwargs)
        return args, kwargs

    def prepare(self, args: tuple[object, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
        """Returns a new call in the form that a program takes, static arguments marked, and True if one is a copy."""
        if self.simple:
            # Most calls with NumPy arrays take these alone.
            copies = [x.copy() for x in args if type(x) is np.ndarray and x.dtype in _COMMON]
            if copies and len(copies) == len(args) and not kwargs:
                return tuple(copies), kwargs, True
            prepared = prepare_tree(given := (args, kwargs))
            return *prepared, prepared is not given
        prepared = prepare_tree(given := self.static.split(args, kwargs))
        return *self.mark(*self.static.join(args, kwargs, *prepared)), prepared is not given

    def mark(self, args: Sequence[object], kwargs: dict[str, object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns a call with its static arguments marked.

        Raises:
          ValueError: as `jax.jit` does, a static argument has no hash.
          ArgumentTypeError: a static argument is a tensor on the devices.
        """
        if not self.static:
            return tuple(args), kwargs
        marks = zip(args, self.static.marks(len(args)), strict=True)
        marked = tuple(_marked(x) if static else x for x, static in marks)
        return marked, {k: _marked(x) if k in self.static.argnames else x for k, x in kwargs.items()}

    def check(self, args: tuple[object, ...], kwargs: dict[str, object], mesh: AnyMesh | None) -> None:
        """Checks the arguments of a call that JAX has refused.

        Raises:
          ArgumentTypeError: an argument is not an array.
          ArgumentValueError: a number that no array can hold.
          MeshMismatchError: an array is committed to other devices.
          DeletedError: an array was donated or deleted.
        """
        call = self.flatten(args, kwargs)
        for leaf, what in zip(call.leaves, self.names(call), strict=True):
            if not is_tensor(leaf):
                abstract(leaf, what)
                check_devices(leaf, what, mesh)
            check_leaf(leaf, what)

    def flatten(self, args: Sequence[object], kwargs: dict[str, object]) -> UserCall:
        """Flattens a call, once: everything that follows takes its leaves."""
        if self.simple:
            return UserCall(self.fun, args, kwargs, *flatten((tuple(args), kwargs)), ())
        args, kwargs = self.mark(args, kwargs)
        unmarked = self.unmarked
        dynamic, dynamic_kw = self.static.split(args, kwargs)

        @functools.wraps(self.fun)
        def fun(*dynamic: Any, **dynamic_kw: object) -> Any:
            full, full_kw = self.static.join(args, kwargs, dynamic, dynamic_kw)
            return unmarked(*full, **full_kw)

        leaves, tree, paths = flatten((tuple(dynamic), dynamic_kw))
        marks = zip(self.donated.marks(len(args)), self.static.marks(len(args)), strict=True)
        by_position: list[bool] = [donated for donated, static in marks if not static]

        def is_donated(path: Any) -> bool:
            if path[0].idx == 1:
                return path[1].key in self.donated.argnames
            return by_position[int(path[1].idx)]

        numbers = tuple(i for i, path in enumerate(paths) if is_donated(path))
        return UserCall(fun, args, kwargs, leaves, tree, paths, numbers)

    def parameters(self, args: Sequence[object]) -> tuple[str, ...]:
        """Returns the names of the parameters of positional arguments that are not static; empty if unknown."""
        names = parameter_names(self.fun, len(args))
        if self.simple:
            return names
        return tuple(n for n, static in zip(names, self.static.marks(len(args)), strict=False) if not static)

    def names(self, call: UserCall) -> list[str]:
        """Returns the names of the leaves of a call, as messages show them."""
        parameters = self.parameters(call.args)
        return [show_path(path, parameters) for path in call.paths]

    def dynamic(self, args: Sequence[object]) -> tuple[object, ...]:
        """Returns the arguments that are not static."""
        return tuple(self.static.split(args, {})[0])


def _marked(x: object) -> Static:
    if isinstance(x, Static):
        return x
    if is_tensor(x):
        raise ArgumentTypeError(f"a static argument is {quote(x)}, a tensor on the devices; pass it as a dynamic one.")
    if not is_hashable(x):
        # JAX raises its error about the value, not about the mark.
        _take_static(x)
    return Static(x)


@functools.partial(typed.jit, static_argnums=0)
def _take_static(_: object) -> None:
    """Takes a static argument."""


def _value(x: object) -> Any:
    return x.value if isinstance(x, Static) else x
