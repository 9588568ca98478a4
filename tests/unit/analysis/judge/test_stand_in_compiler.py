"""The stand-in for the compiler of kernels: an executable for RISC-V, copied to where a kernel is wanted."""

from __future__ import annotations

import itertools
import struct
import subprocess
from pathlib import Path

from jaxmesh.analysis.judge.environment import COMPILER, PROGRAM, install_stand_in, stand_in_program


def test_the_program_is_an_executable_for_risc_v() -> None:
    data = stand_in_program()
    assert data[:7] == b"\x7fELF\x01\x01\x01"
    kind, machine, _, entry, segments, sections, *_ = struct.unpack_from("<HHIIIII", data, 16)
    assert (kind, machine) == (2, 243)
    load, offset, address, _, size, _, flags, _ = struct.unpack_from("<8I", data, segments)
    assert (load, address, flags) == (1, entry, 5)
    assert struct.unpack_from("<I", data, offset) == (0x00008067,)
    count, names = struct.unpack_from("<HH", data, 48)
    headers = [struct.unpack_from("<10I", data, sections + 40 * i) for i in range(count)]
    assert sections + 40 * count == len(data)
    strings = data[headers[names][4] :][: headers[names][5]]
    found = [strings[h[0] :].partition(b"\0")[0].decode() for h in headers]
    assert found == ["", ".text", ".symtab", ".strtab", ".shstrtab", ".rela.text"]
    assert [h[4] % h[8] for h in headers[1:]] == [0] * 5
    ends = [(h[4], h[4] + h[5]) for h in headers[1:]]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    text, relocations = headers[1], headers[5]
    assert (text[3], text[4], text[5]) == (entry, offset, size)
    assert (relocations[6], relocations[7]) == (2, 1)


def test_the_compiler_copies_the_program(tmp_path: Path) -> None:
    install_stand_in(tmp_path / "bin")
    compiler = tmp_path / "bin" / COMPILER
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    assert "stand-in" in version.stdout
    subprocess.run([compiler, "-O2", "-c", "-o", tmp_path / "kernel.o", "kernel.cpp"], check=True)
    assert (tmp_path / "kernel.o").read_bytes() == (tmp_path / "bin" / PROGRAM).read_bytes() == stand_in_program()
    assert (tmp_path / "kernel.d").read_text() == f"{tmp_path / 'kernel.o'}:\n"
    subprocess.run([compiler, "-E", "kernel.cpp"], check=True)
