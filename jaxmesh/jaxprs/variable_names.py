"""The names that JAX gives to the variables of a jaxpr when it prints it."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from jax._src import core

from jaxmesh.jaxprs.compat import Jaxpr, Var
from jaxmesh.jaxprs.walk import open_jaxpr

_core: Any = core


def text_and_names(jaxpr: Jaxpr) -> tuple[str, Mapping[Var, str]]:
    """The text of a jaxpr, as `jaxmesh.jaxprs.core.text` gives it, and the name of each variable in it.

    >>> import jax, jax.numpy as jnp
    >>> text, names = text_and_names(jax.make_jaxpr(jnp.sin)(1.0))
    >>> sorted(names.values())
    ['a', 'b']
    """
    contexts: list[Any] = []

    class Kept(_core.JaxprPpContext):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            contexts.append(self)

    # JAX keeps the names to itself; its printer is run with a context that is looked at afterwards.
    printer = _core.pp_toplevel_jaxpr
    copy = FunctionType(printer.__code__, {**printer.__globals__, "JaxprPpContext": Kept})
    copy.__kwdefaults__ = printer.__kwdefaults__
    text = copy(open_jaxpr(jaxpr)).format(use_color=False)
    return text, dict(contexts[0].var_names)
