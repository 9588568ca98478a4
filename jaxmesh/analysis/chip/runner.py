"""Calls ttnn (`calls DESCRIPTOR`), as calls are printed, on the simulated chip, or is the simulator `wolfpine` itself.

The simulator divides through a float, raises at a divisor of 0, and takes the sign of a remainder from the divisor. The
division of its RISC-V cores is replaced by the standard's, and five faults of its vector unit are mended.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


def _call_until_end(descriptor: int) -> None:
    """Takes jobs from a connection: a call, and the names in it; answers with `_answer`, at first when it is ready."""
    os.set_inheritable(descriptor, False)  # The simulator would keep the connection open.
    link: Any = Connection(descriptor)
    ttnn: Any = importlib.import_module("ttnn")
    if "BOOL" not in dir(ttnn.DataType):
        ttnn.DataType.BOOL = ttnn.DataType.BFLOAT16
    device = ttnn.open_mesh_device(ttnn.MeshShape([1, 1]), l1_small_size=65536)
    answer: tuple[str, list[Any], float] = ("", [], 0.0)
    with contextlib.suppress(EOFError):
        while True:
            link.send(answer)
            answer = _answer(ttnn, device, *link.recv())
    os._exit(0)  # ttnn's destructors wait for the simulator.


def _answer(ttnn: Any, device: Any, source: str, names: Mapping[str, Any]) -> tuple[str, list[Any], float]:
    """Returns why ttnn refused a call, its results, and its seconds."""
    try:
        scope = {n: device if v is None else _received(ttnn, device, *v) for n, v in names.items()}
        begin = time.monotonic()
        found: Any = eval(source, {"ttnn": ttnn} | scope)
        results: Any = found if type(found) in (list, tuple) else [found]
        return "", [_sent(ttnn, r) for r in results], time.monotonic() - begin
    except Exception as error:
        text = str(error).partition("\nbacktrace:")[0]
        return f"refused: {type(error).__name__}: {' '.join(text.split())}"[:500], [], 0.0


def _received(ttnn: Any, device: Any, data: bytes, stored: str, shape: Any, dtype: str, layout: str) -> Any:
    """Puts a tensor on the chip: its bytes, their type in NumPy, its shape, element type and layout."""
    array = importlib.import_module("numpy").frombuffer(bytearray(data), stored).reshape(shape)
    host = ttnn.Tensor(array, getattr(ttnn.DataType, dtype))
    return ttnn.to_device(ttnn.to_layout(host, getattr(ttnn.Layout, layout)), device)


def _sent(ttnn: Any, tensor: Any) -> tuple[Any, ...]:
    host = ttnn.to_layout(ttnn.from_device(tensor), ttnn.Layout.ROW_MAJOR)
    if host.dtype == ttnn.DataType.BFLOAT16:
        host = ttnn.to_dtype(host, ttnn.DataType.FLOAT32)
    array = host.to_numpy().reshape(tuple(tensor.shape))
    return array.tobytes(), array.shape, str(array.dtype)


def divide(dividend: int, divisor: int) -> tuple[int, int]:
    """Returns the quotient and the remainder of the RISC-V standard: (-7, 2) gives (-3, -1), (5, 0) gives (-1, 5)."""
    if divisor == 0:
        return -1, dividend
    quotient = abs(dividend) // abs(divisor) * (1 if (dividend < 0) == (divisor < 0) else -1)
    return quotient, dividend - quotient * divisor


def mend_division(isa: Any) -> None:
    """Replaces `div`, `divu`, `rem` and `remu` of the simulator's class."""
    others = isa.run.__func__

    def run(cls: Any, registers: Any, memory: Any, snoop: Any, instr: int | None = None) -> Any:
        code: int = cls.fetch(registers, memory) if instr is None else instr
        if code & 0x0200407F != 0x02004033:
            return others(cls, registers, memory, snoop, code)
        kind, operands = code >> 12 & 3, (registers[code >> 15 & 31], registers[code >> 20 & 31])
        a, b = (r.read_uint() if kind & 1 else r.read_int() for r in operands)
        registers[code >> 7 & 31].write((divide(a, b)[kind >> 1] % 2**32).to_bytes(4, "little"))
        return True

    isa.run = classmethod(run)


def mend_vectors(unit: Any, formats: Any) -> None:
    """Replaces `SFPADD` without a first operand, `SFPMUL24` without the upper half, `SFPSWAP` without the bit for the
    other order, and `SFPLOAD` and packers without UINT16."""
    swap, multiply, load = unit.handle_sfpswap, unit.handle_sfpmul24, unit.handle_sfpload

    def swapped(self: Any, info: Any, thread: Any, args: Any) -> None:
        c, d = args["lreg_src_c"], args["lreg_dest"]
        exchange = args["instr_mod1"] and self.laneConfigValue(0, unit.EXCHANGE_SRCB_SRCC)
        swap(self, info, thread, args | {"lreg_src_c": d, "lreg_dest": c} if exchange else args)

    def multiplied(self: Any, info: Any, thread: Any, args: Any) -> None:
        a, b, to = (self.lregs[args[f"lreg_{k}"]] for k in ("src_a", "src_b", "dest"))
        upper = [(a[lane] & 0x7FFFFF) * (b[lane] & 0x7FFFFF) >> 23 for lane in range(32)]
        multiply(self, info, thread, args)
        for lane in filter(self.isLaneEnabled, range(32 * args["instr_mod1"])):
            to[lane] = upper[lane]

    def loaded(self: Any, info: Any, thread: Any, args: Any) -> None:
        if args["instr_mod0"] in (unit.MOD0_FMT_UINT16, unit.MOD0_FMT_LO16):
            for lane in filter(self.isLaneEnabled, range(32)):
                self.lregs[args["lreg_ind"]][lane] = 0
            args = args | {"instr_mod0": unit.MOD0_FMT_LO16_ONLY}
        load(self, info, thread, args)

    unit.handle_sfpswap, unit.handle_sfpmul24, unit.handle_sfpload = swapped, multiplied, loaded
    unit.handle_add, formats.INT16 = unit.handle_mad, formats.UINT16


def _end_with(parent: int) -> None:
    """Ends this process when its parent ends: ttnn starts the simulator detached."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["calls"]:
        _call_until_end(int(sys.argv[2]))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    mend_division(importlib.import_module("framework.pe.rv.isa.m_isa").RV_M_ISA)
    mend_vectors(
        importlib.import_module("framework.pe.tensix.backends.vector").VectorUnit,
        importlib.import_module("framework.pe.tensix.backends.backend_base").DataFormat,
    )
    sys.exit(importlib.import_module("framework.sim.blackhole.__main__").main())
