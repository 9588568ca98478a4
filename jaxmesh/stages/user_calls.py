"""Calls of a function of `jaxmesh.jit`: static and donated arguments, leaves, checks of what JAX has refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxmesh.errors import ArgumentTypeError
from jaxmesh.frontends.jax.static_arguments import ArgumentSet, Static
from jaxmesh.frontends.jax.trace import abstract
from jaxmesh.jaxprs.trees import parameter_names
from jaxmesh.sharding.mesh import AnyMesh
from jaxmesh.stages.arguments import (
    check_devices,
    check_donated,
    flatten,
    prepare_tree,
    show_path,
)
from jaxmesh.tensor.mesh_tensor import is_tensor
from jaxmesh.validate import is_hashable, quote


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
    tree: Any
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

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Prepares a call with static or donated arguments: static ones are wrapped, to be looked up by type too."""
        if self.donated:
            call = self.flatten(args, kwargs)
            check_donated(call.leaves, call.donated)
        if not self.static:
            return prepare_tree((args, kwargs))
        dynamic, dynamic_kw = prepare_tree(self.static.split(args, kwargs))
        return self.mark(*self.static.join(args, kwargs, dynamic, dynamic_kw))

    def mark(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
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

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: AnyMesh | None) -> None:
        """Checks the arguments of a call that JAX has refused.

        Raises:
          ArgumentTypeError: an argument is not an array.
          ArgumentValueError: a number that no array can hold.
          MeshMismatchError: an array is committed to other devices.
        """
        call = self.flatten(args, kwargs)
        for leaf, path in zip(call.leaves, call.paths, strict=True):
            if not is_tensor(leaf):
                what = show_path(path)
                abstract(leaf, what)
                check_devices(leaf, what, mesh)

    def flatten(self, args: Sequence[Any], kwargs: dict[str, Any]) -> UserCall:
        """Flattens a call, once: everything that follows takes its leaves."""
        if self.simple:
            return UserCall(self.fun, args, kwargs, *flatten((tuple(args), kwargs)), ())
        args, kwargs = self.mark(args, kwargs)
        unmarked = self.unmarked
        dynamic, dynamic_kw = self.static.split(args, kwargs)

        @functools.wraps(self.fun)
        def fun(*dynamic: Any, **dynamic_kw: Any) -> Any:
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

    def parameters(self, args: Sequence[Any]) -> tuple[str, ...]:
        """Returns the names of the parameters of positional arguments that are not static; empty if unknown."""
        names = parameter_names(self.fun, len(args))
        if self.simple:
            return names
        return tuple(n for n, static in zip(names, self.static.marks(len(args)), strict=False) if not static)

    def dynamic(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the arguments that are not static."""
        return tuple(self.static.split(args, {})[0])


def _marked(x: Any) -> Any:
    if isinstance(x, Static):
        return x
    if is_tensor(x):
        raise ArgumentTypeError(f"a static argument is {quote(x)}, a tensor on the devices; pass it as a dynamic one.")
    if not is_hashable(x):
        # JAX raises its error about the value, not about the mark.
        _take_static(x)
    return Static(x)


@functools.partial(jax.jit, static_argnums=0)
def _take_static(_: Any) -> None:
    """Takes a static argument."""


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Static) else x
