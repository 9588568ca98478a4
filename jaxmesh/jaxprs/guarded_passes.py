"""Parses and passes of MLIR in a separate process, because a failed check in MLIR ends its process.

The process is this file as a script, which imports jaxlib alone. It starts at the first request, in a fraction of a
second, and serves later requests in the time of the work. A request is a line of JSON and data; so is its answer, whose
data are the module after the passes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from io import BytesIO
from typing import IO, Any, cast

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

SECONDS = 300
"""The seconds that one request may take."""
MEMORY = 1 << 30
"""The bytes that one request may take, beside `MEMORY_PER_BYTE` for each byte of its data."""
MEMORY_PER_BYTE = 64
_mhlo: Any = mhlo
REFUSALS = ir.MLIRError, ValueError, RuntimeError
"""The errors by which MLIR refuses a text or a module."""


class _Guard:
    """The separate process; a request starts it if it does not run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._errors: IO[bytes] | None = None

    def ask(self, request: dict[str, object], data: bytes) -> Any:
        """Returns the answer to a request; a str that says how the process ended, if it did."""
        with self._lock:
            process = self._running()
            stdin, stdout = cast("tuple[IO[bytes], IO[bytes]]", (process.stdin, process.stdout))
            timer = threading.Timer(SECONDS, process.kill)
            timer.start()
            try:
                with contextlib.suppress(BrokenPipeError):
                    stdin.write(json.dumps({**request, "bytes": len(data)}).encode() + b"\n" + data)
                    stdin.flush()
                line = stdout.readline()
                answer: Any = json.loads(line) if line.endswith(b"\n") else {"bytes": 1}
                answer["made"] = stdout.read(answer["bytes"])
            except BaseException:
                # An interrupted request would answer the next one.
                process.kill()
                raise
            finally:
                timer.cancel()
            return answer if len(answer["made"]) == answer["bytes"] else self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        # A forked process must not share its parent's pipes.
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is not None:
            self._end()
        if self._process is None or self._owner != os.getpid():
            self._owner, self._errors = os.getpid(), tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        return self._process

    def _end(self) -> str:
        process, errors = self._process, self._errors
        assert process is not None
        assert errors is not None
        process.communicate()
        code, self._process = process.returncode, None
        with errors:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
        ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            return f"it was killed, after {SECONDS} seconds or for lack of memory"
        return next((x for x in lines if "Check failed" in x or "Assertion" in x or "ERROR" in x), ended)

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.communicate()
            if self._errors is not None:
                self._errors.close()


_guard = _Guard()
atexit.register(_guard.close)


def guarded_passes(module: Any, passes: Sequence[str]) -> Any:
    """Runs passes over a copy of a module; returns the copy; the last output of the process if a pass ends it.

    Raises:
      MLIRError, ValueError, RuntimeError: a pass refuses the module; see `REFUSALS`.
    """
    code = BytesIO()
    module.write_bytecode(code)
    answer = _guard.ask({"passes": list(passes)}, code.getvalue())
    if isinstance(answer, str):
        return answer
    if answer["made"]:
        return ir.Module.parse(answer["made"], module.context).operation
    # This process has the whole message.
    run_passes(module, passes)
    return module


def refusal(text: str, attributes: Sequence[str] = ()) -> tuple[str, str] | None:
    """Parses a module, or attributes; returns the location and the message of the first error, or None."""
    data = text.encode("utf-8", "surrogatepass")
    answer = _guard.ask({"attributes": list(attributes)} if attributes else {}, data)
    if isinstance(answer, str):
        return "", f"MLIR would end the process on this text ({answer[:300]})"
    return tuple(answer["refused"]) if answer["refused"] else None


def run_passes(module: Any, passes: Sequence[str], *, verify: bool = True) -> None:
    """Runs passes over a module, which is changed; `verify` has MLIR verify it after each of them.

    Raises:
      MLIRError, ValueError, RuntimeError: a pass refuses the module; see `REFUSALS`.
    """
    for name in passes:
        made = passmanager.PassManager.parse(f"builtin.module({name})", module.context)
        made.enable_verifier(verify)
        made.run(module)


# --- the process -----------------------------------------------------------------------------------------------------


def new_context() -> Any:
    """Returns a context with the dialects of JAX's modules."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    dialects = sdy, chlo, stablehlo
    for dialect in dialects:
        dialect.register_dialect(context)
    _mhlo.register_mhlo_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def _limit_memory(size: int) -> None:
    # Not every system has this limit or this file.
    with contextlib.suppress(ImportError, OSError, ValueError, StopIteration):
        import resource

        with open("/proc/self/status", encoding="ascii") as status:
            used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY + MEMORY_PER_BYTE * size, hard))


def _first_error(request: dict[str, Any], data: bytes, made: BytesIO) -> list[str]:
    """Runs a request, and writes the module; returns the location and the message of the first error, or no text."""
    # A separate context for each request: a context keeps its constants.
    with new_context() as context, ir.Location.unknown():
        try:
            for text in request.get("attributes", ()):
                ir.Attribute.parse(text)
            if "attributes" not in request:
                module = ir.Module.parse(data, context)
                if "passes" in request:
                    run_passes(module.operation, request["passes"])
                    module.operation.write_bytecode(made)
        except ir.MLIRError as error:
            first = next(iter(error.error_diagnostics), None)
            return [str(first.location), first.message] if first else ["", str(error)]
        except MemoryError:
            return ["", f"it needs more than {MEMORY >> 20} MB beside the text"]
        except REFUSALS as error:
            return ["", str(error)]
    return []


def _serve() -> None:
    answers, incoming = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)
    while line := incoming.readline():
        request = json.loads(line)
        data = incoming.read(request["bytes"])
        _limit_memory(len(data))
        error = _first_error(request, data, made := BytesIO())
        answers.write(json.dumps({"refused": error, "bytes": made.tell()}).encode() + b"\n" + made.getvalue())
        answers.flush()


if __name__ == "__main__":
    _serve()
