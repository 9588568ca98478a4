"""The Python of the simulated chip: found, or what it lacks; and the process that calls the chip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxmesh.analysis.chip import environment
from jaxmesh.analysis.chip.environment import CHIP, Chip, find_environment
from jaxmesh.analysis.chip.runner import divide, mend_division, mend_vectors
from jaxmesh.analysis.upstream.environment import Plugin
from jaxmesh.cli.main import main
from jaxmesh.errors import ChipError
from tests.generators.simulated_chip import python_with

GET = r"make one with `jaxmesh chip-env`.*with JAXMESH_CHIP_PYTHON"


def test_nothing_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CHIP.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ChipError, match=rf"'{tmp_path}/jaxmesh/chip/bin/python' does not exist; {GET}"):
        find_environment()
    monkeypatch.setenv(CHIP.variable, str(tmp_path / "none"))
    with pytest.raises(ChipError, match=rf"\(JAXMESH_CHIP_PYTHON names it\), but it cannot be started.*{GET}"):
        find_environment()
    with pytest.raises(ChipError, match=rf"the simulated chip is not installed in this Python.*{GET}"):
        find_environment(sys.executable)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("wolfpine", "the simulated chip is not installed in this Python"),
        ("ttnn", "ttnn is not installed in this Python"),
        ("sim", r"wolfpine 2\.2 does not have '.*framework/sim/blackhole'"),
        ("compiler", "'.*runtime/sfpi/compiler' lacks a compiler of kernels for Blackhole"),
        ("library", "'.*runtime/sfpi/compiler' lacks a compiler of kernels for Blackhole"),
    ],
)
def test_each_part_is_asked_for(without: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ChipError, match=rf"{message}.*{GET}"):
        find_environment(python_with(tmp_path, without=without))


def test_versions_are_told(tmp_path: Path) -> None:
    python = python_with(tmp_path)
    assert find_environment(python) == (
        python,
        tmp_path / "site/framework/sim/blackhole",
        "ttnn 0.81.1, wolfpine 2.2, sfpi 7.87.0",
    )


@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_compiler_of_kernels_comes_from_the_plugin(
    has_compiler: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assets, site = tmp_path / "assets", tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    compiler = assets / "runtime" / "sfpi" / "compiler"
    (compiler if has_compiler else assets).mkdir(parents=True)
    (site / "ttnn" / "runtime" / "sfpi" / "old").mkdir(parents=True)
    monkeypatch.setattr(environment, "find_plugin", lambda: Plugin(Path("p"), Path("p.so"), "plugin 1"))
    monkeypatch.setattr(environment, "with_assets", lambda plugin, machine, use: use(assets))
    environment._add_compiler(tmp_path / "env")
    made = site / "ttnn" / "runtime" / "sfpi"
    assert (made / "compiler").is_dir() == has_compiler
    assert not (made / "old").exists()


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[object] = []

    def make(folder: Path, version: str, python: str | None) -> str:
        asked.append((folder, version, python))
        return "ttnn 1, wolfpine 2"

    monkeypatch.setattr(environment, "make_environment", make)
    assert main(["chip-env", str(tmp_path / "x"), "--python", "p"]) == 0
    assert asked == [(tmp_path / "x", CHIP.tested, "p")]
    assert capsys.readouterr().out.splitlines() == [
        f"ttnn 1, wolfpine 2 in {tmp_path}/x",
        f"export {CHIP.variable}={tmp_path}/x/bin/python",
    ]


# --- the process -----------------------------------------------------------------------------------------------------


def tensor(values: Any) -> tuple[Any, ...]:
    return np.float32(values).tobytes(), "float32", np.shape(values), "FLOAT32", "TILE"


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def chip(python: Path) -> Any:
    made = Chip(python)
    yield made
    made.close()
    assert not made.folder.exists()


def test_a_call_comes_back(chip: Chip) -> None:
    failed, (result,), seconds = chip.call("ttnn.add(x, y, dtype=None)", {"x": tensor(X), "y": tensor(X)})
    np.testing.assert_array_equal(result, X + X)
    assert (failed, result.dtype) == ("", np.float32)
    assert 0 < seconds < 120
    failed, (result,), _ = chip.call("ttnn.full([2], 3.0, ttnn.DataType.FLOAT32, None, device)", {"device": None})
    np.testing.assert_array_equal(result, [3.0, 3.0])


def test_a_refusal_is_told_and_the_process_goes_on(chip: Chip) -> None:
    failed, results, _ = chip.call("ttnn.matmul(x, x)", {"x": tensor(X)})
    assert failed.startswith("refused: ValueError: matmul:")
    assert results == []
    process = chip._running
    assert chip.call("ttnn.neg(x)", {"x": tensor(X)})[0] == ""
    assert chip._running is process


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("time.sleep(60)", "stands still: no answer in 1 s"),
        ("print('out of luck', file=__import__('sys').stderr); os._exit(3)", "ended: out of luck"),
        ("os._exit(3)", "ended: it printed nothing"),
    ],
)
@pytest.mark.slow(but_one_in=6)
def test_a_dead_process_is_replaced(fault: str, told: str, monkeypatch: pytest.MonkeyPatch, chip: Chip) -> None:
    monkeypatch.setenv("FAULT_exp", fault)
    assert chip.call("ttnn.neg(x)", {"x": tensor(X)})[0] == ""
    monkeypatch.setattr(chip, "_seconds", 1.0 if "sleep" in fault else 120.0)
    assert chip.call("ttnn.exp(x)", {"x": tensor(X)}) == (told, [], 0.0)
    monkeypatch.setattr(chip, "_seconds", 120.0)
    assert chip.call("ttnn.neg(x)", {"x": tensor(X)})[0] == ""


def test_a_chip_that_does_not_start_is_an_error(python: Path) -> None:
    (python.parents[1] / "site" / "ttnn" / "__init__.py").write_text("raise OSError('no such firmware')")
    made = Chip(python)
    with pytest.raises(ChipError, match=r"\(ttnn 0\.81\.1, .*\) does not start: it ended: .*no such firmware"):
        made.call("ttnn.neg(x)", {"x": tensor(X)})
    made.close()


# --- the simulator ---------------------------------------------------------------------------------------------------


def test_division_follows_the_standard() -> None:
    assert [divide(*p) for p in ((-7, 2), (7, -2), (5, 0), (2**53 + 1, 1))] == [
        (-3, -1), (-3, 1), (-1, 5), (2**53 + 1, 0),
    ]  # fmt: skip

    class Register(bytearray):
        def read_int(self) -> int:
            return int.from_bytes(self, "little", signed=True)

        def read_uint(self) -> int:
            return int.from_bytes(self, "little")

        def write(self, data: bytes) -> None:
            self[:] = data

    class Isa:
        @classmethod
        def run(cls, registers: Any, memory: Any, snoop: Any, instr: int | None = None) -> str:
            return f"other {instr}"

    mend_division(Isa)
    for kind, wanted in ((4, -4), (5, (2**32 - 9) // 2), (6, -1), (7, (2**32 - 9) % 2)):
        registers = [Register(n.to_bytes(4, "little", signed=True)) for n in (0, -9, 2)]
        assert Isa.run(registers, None, None, 0x02000033 | kind << 12 | 0 << 7 | 1 << 15 | 2 << 20) is True
        assert registers[0].read_int() == (wanted if wanted < 2**31 else wanted - 2**32)
    assert Isa.run([], None, None, 0x33) == f"other {0x33}"


class Unit:
    """The simulator's vector unit, with two lanes of 32 that are off."""

    MOD0_FMT_UINT16, MOD0_FMT_LO16, MOD0_FMT_LO16_ONLY, EXCHANGE_SRCB_SRCC = 6, 9, 14, (8, 1)

    def __init__(self) -> None:
        self.lregs = [[100 * n + lane for lane in range(32)] for n in range(8)]
        self.exchanges, self.told = False, list[Any]()

    def isLaneEnabled(self, lane: int) -> bool:
        return lane > 1

    def laneConfigValue(self, lane: int, key: tuple[int, int]) -> bool:
        assert key == self.EXCHANGE_SRCB_SRCC
        return self.exchanges

    def handle_add(self, info: Any, thread: Any, args: Any) -> None:
        raise AssertionError("1.0 in place of an operand")

    def handle_mad(self, info: Any, thread: Any, args: Any) -> None:
        self.told.append(args)

    handle_sfpswap = handle_sfpload = handle_mad

    def handle_sfpmul24(self, info: Any, thread: Any, args: Any) -> None:
        for lane in range(2, 32):
            a, b = (self.lregs[args[f"lreg_src_{k}"]][lane] for k in "ab")
            self.lregs[args["lreg_dest"]][lane] = a * b & 0x7FFFFF


def test_the_vector_unit_is_mended() -> None:
    class Mended(Unit):
        pass

    class Formats:
        UINT16 = 9

    mend_vectors(Mended, Formats)
    unit: Any = Mended()
    unit.handle_add(0, 0, {"lreg_src_a": 3})
    assert unit.told.pop() == {"lreg_src_a": 3}
    assert Formats.INT16 == 9  # pyright: ignore

    for mode, exchanges, swapped in ((0, True, False), (1, False, False), (1, True, True)):
        unit.exchanges = exchanges
        unit.handle_sfpswap(0, 0, {"instr_mod1": mode, "lreg_src_c": 2, "lreg_dest": 5})
        told = unit.told.pop()
        assert (told["lreg_src_c"], told["lreg_dest"]) == ((5, 2) if swapped else (2, 5))

    unit.lregs[1] = unit.lregs[2] = [2**31 + 2**22 + 5] * 32
    for mode, wanted in ((0, 2**44 + 10 * 2**22 + 25 & 0x7FFFFF), (1, 2**44 + 10 * 2**22 + 25 >> 23)):
        unit.handle_sfpmul24(0, 0, {"instr_mod1": mode, "lreg_src_a": 1, "lreg_src_b": 2, "lreg_dest": 7})
        assert unit.lregs[7] == [700, 701, *[wanted] * 30]
    unit.handle_sfpmul24(0, 0, {"instr_mod1": 1, "lreg_src_a": 1, "lreg_src_b": 2, "lreg_dest": 1})
    assert unit.lregs[1][2:] == [2**44 + 10 * 2**22 + 25 >> 23] * 30

    for mode in range(16):
        unit.lregs[3] = [7] * 32
        unit.handle_sfpload(0, 0, {"instr_mod0": mode, "lreg_ind": 3})
        clears = mode in (6, 9)
        assert unit.told.pop() == {"instr_mod0": 14 if clears else mode, "lreg_ind": 3}
        assert unit.lregs[3] == [7, 7, *[0 if clears else 7] * 30]
