"""The names that JAX gives to the variables of a jaxpr when it prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax._src import core, pretty_printer
from jax.extend import core as jex

from jaxmesh.jaxprs.compat import Jaxpr, Primitive, Var
from jaxmesh.jaxprs.walk import open_jaxpr, rebuild, text

_core: Any = core
_end_p = Primitive("jaxmesh_end")


def variable_names(jaxpr: Jaxpr) -> Mapping[Var, str]:
    """Returns the name that each variable has in the text of a jaxpr.

    >>> import jax, jax.numpy as jnp
    >>> sorted(variable_names(jax.make_jaxpr(jnp.sin)(1.0)).values())
    ['a', 'b']
    """
    # JAX keeps the names in the context of one printing. An equation behind the others is printed in that context.
    contexts: list[Any] = []
    body = open_jaxpr(jaxpr)
    end = jex.new_jaxpr_eqn([], [], _end_p, {"contexts": contexts}, jex.no_effects)
    text(rebuild(body, body.constvars, body.invars, [*body.eqns, end], body.outvars))
    return dict(contexts[-1].var_names)


def _print_end(eqn: Any, context: Any, _settings: Any) -> Any:
    eqn.params["contexts"].append(context)
    return pretty_printer.nil()


_core.pp_eqn_rules[_end_p] = _print_end
