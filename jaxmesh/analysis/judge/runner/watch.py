"""Watches a program line by line: the device operations of each line, and the memory of the devices."""

from __future__ import annotations

import ast
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxmesh.analysis.judge.runner.capture import Capture, OwnResult, read_capture

MEMORIES: tuple[str, ...] = ("DRAM", "L1")


ENTER, LEAVE, TRIPS = "_enter_line", "_leave_function", "_trips"


class Marks(ast.NodeTransformer):
    """Inserts calls that report each line of each function, and the results of one function, to a watch.

    A trace function would be called with a dict of all local names at each line, and programs have thousands of both.
    """

    def __init__(self, function: str, described: bool = False) -> None:
        self._counts, self._open, self._described = function, list[str](), described

    def visit_For(self, node: ast.For) -> Any:
        """Lets the watch choose the iterations of a loop on described devices, which do the same in all but the
        first."""
        if self._described and isinstance(node.iter, ast.Call):
            node.iter = _located(_call(TRIPS, *node.iter.args), node)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> Any:
        """Turns a loop whose end only real devices know into one iteration."""
        if not self._described or not isinstance(node.test, ast.Call):
            return self.generic_visit(node)
        once = _call(TRIPS, ast.Constant(1))
        body = [ast.Expr(node.test.args[0]), *node.body]
        return self.generic_visit(_located(ast.For(ast.Name("_", ast.Store()), once, body, []), node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> object:
        """Marks the lines of a function."""
        self._open.append(node.name)
        super().generic_visit(node)
        self._open.pop()
        return self._marked(node)

    def generic_visit(self, node: ast.AST) -> Any:
        """Marks a statement and the statements in it; an expression contains none."""
        if not isinstance(node, ast.expr):
            super().generic_visit(node)
        return self._marked(node) if isinstance(node, ast.stmt) else node

    def _marked(self, node: ast.stmt) -> Any:
        if not self._open:
            return node
        mark = _located(ast.Expr(_call(ENTER, ast.Constant(node.lineno))), node)
        if isinstance(node, ast.Return) and self._open[-1] == self._counts:
            node.value = _located(_call(LEAVE, node.value or ast.Constant(None), _call("locals")), node)
        return [mark, node]


def _located(added: Any, node: ast.stmt) -> Any:
    """Returns an added node with the location of a statement."""
    return ast.fix_missing_locations(ast.copy_location(added, node))


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


class Watch:
    """A context that watches the lines of one script; ttnn's graph capture records the operations of each line.

    Args:
      ttnn: the library.
      progress: a file for the number of the current line, which survives a crash of the process.
      device: returns the open device, or None. A capture that begins before the device is opened does not end.
    """

    def __init__(self, ttnn: Any, progress: Path, device: Callable[[], Any]) -> None:
        self.line, self._times, self._device, self._ttnn = 0, 1, device, ttnn
        self._progress = os.open(progress, os.O_WRONLY | os.O_CREAT, 0o600)
        self._repeated: set[int] = set()
        """The lines of loops that have run."""
        self._late = True
        """Whether all loops around this line are in the last iteration that they take."""
        self._operations: dict[int, Counter[str]] = {}
        self.kernels: dict[int, int] | None = {}
        """By line the largest size of one kernel's buffers in the L1 of one core, in bytes; None once ttnn has refused
        a plan."""
        self._now = dict.fromkeys(MEMORIES, 0)
        self._peaks: dict[str, tuple[int, int]] = dict.fromkeys(MEMORIES, (0, 0))
        self._live: set[tuple[str, int]] = set()
        """The memory and the address of each buffer that is allocated now."""
        self._before: dict[str, int] = {}
        self._bank_bytes: dict[str, int] = {}
        self._at_return = dict(self._now)
        self._left: list[dict[str, object]] = []

    def close(self) -> None:
        """Ends the last line."""
        self._finish_line()
        os.close(self._progress)

    # --- lines ---

    def enter_line(self, line: int) -> None:
        """Ends the previous line, and begins this one."""
        self._finish_line()
        self.line = line
        os.pwrite(self._progress, b"%08d" % line, 0)
        if self._device() is not None:
            if not self._before:
                self._read_memories()
            self._begin()

    def trips(self, count: int) -> Iterator[None]:
        """Yields in the first iteration of a loop, and in the second, which counts as all others.

        When a loop runs again, it takes one iteration, which counts as all; but two in the last iterations of all loops
        around it, where each of them holds its states of the iteration before.
        """
        outer, late, again = self._times, self._late, self.line in self._repeated
        self._repeated.add(self.line)
        taken = [n for n in ((count,) if again and not late else (min(count, 1), count - 1)) if n > 0]
        for number, times in enumerate(taken, 1):
            self._finish_line()
            self._times, self._late = outer * times, late and number == len(taken)
            yield
        self._finish_line()
        self._times, self._late = outer, late

    def leave_function(self, results: object, names: Mapping[str, object]) -> object:
        """Records the tensors that the watched function leaves on the devices; returns its results."""
        self._finish_line()
        self._at_return = dict(self._now)
        self._left = list(self._allocated(names, results))
        return results

    # --- calls ---

    @property
    def is_watching(self) -> bool:
        """True once the devices are open."""
        return bool(self._ttnn.graph.is_graph_capture_active())

    def measure(self, call: Callable[[], Any]) -> tuple[Any, Capture]:
        """Returns the result of a call, with the operations and buffers of the call."""
        self._finish_line()
        self._begin()
        result = call()
        done = self._end()
        self._account(done)
        self._begin()
        return result, done

    def plan(self, call: Callable[[], Any]) -> int:
        """Plans a call without dispatch and without memory: ttnn then reports the buffers of its kernels in L1.

        Returns the bytes of the largest kernel on a core.
        """
        self._finish_line()
        self._begin("NO_DISPATCH")
        try:
            call()
        except RuntimeError:
            # ttnn took the call itself: this says nothing of the program.
            self.kernels = None
        kernel = self._end().kernel
        if self.kernels is not None and kernel:
            self.kernels[self.line] = max(self.kernels.get(self.line, 0), kernel)
        self._begin()
        return kernel

    def repeat(self, call: OwnResult, make: Callable[[], Any]) -> Any:
        """Counts a call that equals an earlier one; returns its result, allocated by `make`.

        Returns None if ttnn has to make the call: DRAM or L1 would be more than half full. Then it can depend on the
        addresses of other buffers whether ttnn accepts it.
        """
        self._finish_line()
        has_room = all(
            2 * (self._before[m] + self._now[m] + more) < self._bank_bytes[m]
            for m, more in (("DRAM", call.peak), ("L1", call.kernel))
        )
        result = make() if has_room else None
        if result is not None:
            self._note_peak("DRAM", self._now["DRAM"] + call.peak)
            self._account(Capture(call.operations, [(1, "DRAM", int(result.buffer_address()), call.size)], 0))
        self._begin()
        return result

    def _begin(self, mode: str = "NORMAL") -> None:
        self._ttnn.graph.begin_graph_capture(getattr(self._ttnn.graph.RunMode, mode))
        # ttnn records buffers and operations in C++. In Python it would record the text of every argument.
        self._ttnn.graph.disable_python_io_recording()

    def _end(self) -> Capture:
        return read_capture(self._ttnn.graph.end_graph_capture())

    def _finish_line(self) -> None:
        if self.is_watching:
            self._account(self._end())

    # --- memory ---

    def _read_memories(self) -> None:
        for memory in MEMORIES:
            view = self._view(memory)
            self._before[memory] = int(view.total_bytes_allocated_per_bank)
            self._bank_bytes[memory] = int(view.total_bytes_per_bank)

    def _account(self, done: Capture) -> None:
        """Adds operations to the line, and buffers' bytes per bank to the totals of their memories."""
        if done.operations:
            mine = self._operations.setdefault(self.line, Counter())
            for name, count in done.operations.items():
                mine[name] += count * self._times
        for sign, memory, address, size in done.buffers:
            if memory not in self._now:
                continue
            (self._live.add if sign > 0 else self._live.discard)((memory, address))
            self._now[memory] += sign * size
            self._note_peak(memory, self._now[memory])

    def _note_peak(self, memory: str, allocated: int) -> None:
        if allocated > self._peaks[memory][0]:
            self._peaks[memory] = allocated, self.line

    def _allocated(self, names: Mapping[str, Any], results: Any) -> Iterator[dict[str, object]]:
        """Yields the tensors that are still on the devices, without results and arguments."""
        kept = [t for t in (*results, *names.get("arg", ())) if isinstance(t, self._ttnn.Tensor)]
        addresses = {_address(r) for r in kept}
        # A tensor whose buffer was freed through a view of it still says that it is allocated.
        live = {address for _, address in self._live}
        for name, tensor in names.items():
            if not isinstance(tensor, self._ttnn.Tensor):
                continue
            address = _address(tensor)
            if address in live and address not in addresses:
                addresses.add(address)
                size = math.prod(map(int, tensor.padded_shape)) * tensor.element_size()
                yield {"name": name, "shape": [int(n) for n in tensor.shape], "bytes": size}

    # --- findings ---

    def findings(self) -> dict[str, object]:
        """Returns the operations of each line, the leaked tensors, and the memories of the open devices."""
        device = self._device()
        report: dict[str, Any] = {"operations": self._operations, "left": self._left}
        if device is not None:
            report["mesh"] = [int(n) for n in device.shape]
            report["memories"] = {m: self._memory(m) for m in MEMORIES}
        return report

    def _view(self, name: str) -> Any:
        return self._ttnn.get_memory_view(self._device(), getattr(self._ttnn.BufferType, name))

    def _memory(self, name: str) -> dict[str, int]:
        """Returns a memory's banks, their size, and the allocated bytes per bank, at the peak and at the end."""
        view, before = self._view(name), self._before.get(name, 0)
        peak, line = self._peaks[name]
        return {
            "banks": int(view.num_banks),
            "bank_bytes": int(view.total_bytes_per_bank),
            "peak": before + peak,
            "peak_line": line,
            "end": before + self._at_return[name],
        }


def _address(tensor: Any) -> int | None:
    """Returns the address of a tensor on the devices; None for a host tensor."""
    if not tensor.is_allocated() or tensor.device() is None:
        return None
    return int(tensor.buffer_address())
