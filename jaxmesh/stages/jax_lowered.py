"""A program that is lowered, with what JAX's own `jax.stages.Lowered` offers."""

from __future__ import annotations

import abc
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxmesh.analysis.machines import DEFAULT
from jaxmesh.sharding.mesh import AnyMesh, with_devices
from jaxmesh.stages.checked_calls import Checks
from jaxmesh.stages.jax_stages import lower_with_jax
from jaxmesh.stages.on_machine import OnMachine

if TYPE_CHECKING:
    from jaxmesh.stages.upstream import UpstreamResult


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

    @abc.abstractmethod
    def global_program(self) -> tuple[Callable[[], str] | None, Callable[..., Any]]:
        """Returns a function that makes the StableHLO text of global shapes, or None, and the class of programs."""

    def upstream(
        self,
        cluster: str = DEFAULT,
        options: Mapping[str, str] | None = None,
        *,
        plugin: str | os.PathLike[str] | None = None,
        timeout: float = 600,
    ) -> UpstreamResult[Any]:
        """Compiles the program with Tenstorrent's own compiler, tt-xla and tt-mlir; needs no board and no values.

        The compiler runs in another Python environment, made by `jaxmesh upstream-env`, for a described machine. It
        gets the program as JAX sends it: with global shapes and shardings, and with regions of `shard_map` or
        `mesh_shard` as `sdy.manual_computation`. It knows arrays alone: a `MeshTensor` is sent as the array whose
        first dim its shards divide, in the order of the mesh.

        Args:
          cluster: the name of a machine in `jaxmesh.analysis.machines`, in any case.
          options: compiler options of tt-xla.
          plugin: the path of the plugin's library, or of a Python that has it; by default `JAXMESH_UPSTREAM_PYTHON`,
            or the environment that `jaxmesh upstream-env` made.
          timeout: how many seconds it may take.

        Returns:
          The texts of all its stages, `ttir`, `ttnn`, the `flatbuffer`, or its `refusal`; `program("ttnn")` reads a
          text as a program. It is true if the program was compiled, and shows as a table.

        Raises:
          UpstreamError: the compiler was not found, does not start, crashed, or took too long.
          MeshError: the machine has not enough devices.
          UnsupportedError: a `MeshTensor` is a scalar that differs between devices, which has no dim to divide.
        """
        from jaxmesh.stages import joined_tensors
        from jaxmesh.stages.upstream import ask_upstream

        boundary, residency, program = self._boundary, self._decomposed_residency, self
        text, make = self.global_program()
        ends = joined_tensors.tensor_arguments(boundary), joined_tensors.tensor_results(boundary, residency.results)
        if text is None and any(ends):
            program = make(*joined_tensors.with_joined_tensors(boundary, residency), self.out_tree).lower()
        source = program.lower_with_jax(("cpu",)).as_text(debug_info=True) if text is None else text()
        asked = {"cluster": cluster, "options": options, "plugin": plugin, "timeout": timeout}
        return ask_upstream(source, make, ends, **asked)

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """Returns JAX's module of the program that runs, as of `jax.stages.Lowered`."""
        return self.lower_with_jax().compiler_ir(dialect)

    def cost_analysis(self) -> Any:
        """Returns XLA's estimate before it optimizes, as of `jax.stages.Lowered`; see `estimate` for Tenstorrent's."""
        return self.lower_with_jax().cost_analysis()
