"""Tries MLIR passes in a separate process, because a failed check in a pass ends its process.

The process is this file as a script. It imports jaxlib alone, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

_SECONDS = 300
_ir: Any = ir
_mhlo: Any = mhlo
REFUSALS = _ir.MLIRError, ValueError, RuntimeError
"""The errors by which passes refuse a module."""
_REFUSED = 1
"""The exit code for an error that MLIR reports; it is reported again by whoever runs the passes."""


def fatal_error(module: Any, passes: Sequence[str]) -> str | None:
    """Runs passes over a copy of a module; returns the last output of the process if a pass ends it, else None."""
    code = BytesIO()
    module.write_bytecode(code)
    command = [sys.executable, "-P", __file__, *passes]
    try:
        done = subprocess.run(command, input=code.getvalue(), capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"they were not done after {_SECONDS} seconds"
    if done.returncode in (0, _REFUSED):
        return None
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    return next((x for x in lines if "Check failed" in x or "Assertion" in x or "ERROR" in x), ended)


def run_passes(module: Any, passes: Sequence[str], *, verify: bool = True) -> None:
    """Runs passes over a module, which is changed; `verify` has MLIR verify it after each of them.

    Raises:
      MLIRError, ValueError, RuntimeError: a pass refuses the module; see `REFUSALS`.
    """
    manager: Any = passmanager.PassManager
    for name in passes:
        made = manager.parse(f"builtin.module({name})", module.context)
        made.enable_verifier(verify)
        made.run(module)


def _main() -> int:
    registry = _ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = _ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    dialects: Any = sdy, chlo, stablehlo
    for dialect in dialects:
        dialect.register_dialect(context)
    _mhlo.register_mhlo_dialect(context)
    context.allow_unregistered_dialects = True
    with context, _ir.Location.unknown():
        try:
            run_passes(_ir.Module.parse(sys.stdin.buffer.read(), context).operation, sys.argv[1:])
        except REFUSALS:
            return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main())
