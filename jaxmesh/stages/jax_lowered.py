"""A program that is lowered, with what JAX's own `jax.stages.Lowered` offers."""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any

from jaxmesh.sharding.mesh import AnyMesh, with_devices
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.jax_stages import lower_with_jax
from jaxmesh.stages.on_machine import OnMachine


class JaxLowered(OnMachine):
    """A program that runs, and that JAX can lower as it runs."""

    @abc.abstractmethod
    def run(self, args: Sequence[Any], mesh: AnyMesh, checks: Checks | None = None) -> Any:
        """Runs on flat arguments inside a trace, or eagerly."""

    def lower_with_jax(self, platforms: Sequence[str] | None = None, **keywords: Any) -> Any:
        """Returns the `jax.stages.Lowered` of the program that runs; the arguments are of `jax.stages.Traced.lower`."""
        run = functools.partial(self.run, mesh=with_devices(self._boundary.mesh))
        return lower_with_jax(self._boundary, run, platforms, keywords)

    def as_text(self, dialect: str | None = None, **options: Any) -> str:
        """Returns the program as text; `"stablehlo"` and `"hlo"` are JAX's texts of the program that runs.

        The other dialects, the options and the errors are the same as in `Traced.as_text`.
        """
        if isinstance(dialect, str) and dialect in ("stablehlo", "hlo"):
            return self.lower_with_jax().as_text(dialect, **options)
        return super().as_text(dialect, **options)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Returns JAX's module of the program that runs, as of `jax.stages.Lowered`."""
        return self.lower_with_jax().compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """Returns XLA's estimate before it optimizes, as of `jax.stages.Lowered`; see `estimate` for Tenstorrent's."""
        return self.lower_with_jax().cost_analysis()
