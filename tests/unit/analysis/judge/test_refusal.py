"""The reason for a refusal, out of the texts of the library's errors."""

from __future__ import annotations

import pytest

from jaxmesh.analysis.judge.runner.run import describe

FATAL = """TT_FATAL @ /project/ttnn/cpp/ttnn/operations/a/b.cpp:12: x.dtype() == DataType::BFLOAT16
info:
{}
backtrace:
 --- /somewhere/_ttnncpp.so(+0xb233e8) [0x7f05caf233e8]
"""


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Only bfloat16\n is taken", "rule"),
        ("Out of Memory: Not enough space to allocate 8 B DRAM buffer across 12 banks", "DRAM"),
        ("Out of Memory: Not enough space to allocate 8 B L1 buffer across 64 banks", "L1"),
        ("Statically allocated circular buffers in program 16 clash with L1 buffers on core range [0-0 - 0-0].", "L1"),
        ("Statically allocated circular buffers on core range [0-0] grow to 2 B which is beyond max L1 size", "L1"),
    ],
)
def test_a_fatal_error(reason: str, kind: str) -> None:
    found = describe(RuntimeError(FATAL.format(reason)))
    assert found["kind"] == kind
    assert found["reason"] == " ".join(reason.split())
    assert found["rule"] == "ttnn/cpp/ttnn/operations/a/b.cpp:12: x.dtype() == DataType::BFLOAT16"
    assert "_ttnncpp" not in found["text"]


def test_a_fatal_error_without_information_gives_the_condition() -> None:
    assert describe(RuntimeError("TT_FATAL @ /project/a.cpp:3: a < b\nbacktrace:\n --- x"))["reason"] == "a < b"


BINDING = """
ttnn.f(): incompatible function arguments.

Called with:
  f({})

Available signatures:
  f(x: ttnn.Tensor, *, dtype: ttnn.DataType | None = None, memory_config: a | b[c.d: e] = [1]) -> ttnn.Tensor
"""


@pytest.mark.parametrize(
    ("called", "reason"),
    [
        ("ttnn.Tensor, bogus=1", "ttnn.f has no argument 'bogus'; it has dtype, memory_config, x"),
        (
            "str, memory_config=M(layout=L(size=[1, 2]), other=(3))",
            "incompatible function arguments. Called with f(str, ",
        ),
        (
            "x=device_id: 0, MeshCoordinate([0, 0])\nttnn.Tensor([[1]], shape=S([1]))\n\ndevice_id: 4, MeshCoordinate("
            "[0, 1])\nttnn.Tensor([[1]]), dtype=None",
            "incompatible function arguments. Called with f(x=ttnn.Tensor, dtype=None)",
        ),
        ("ttnn.Tensor, dtype=[D(a=1)], bogus=M(dtype=1)", "has no argument 'bogus'"),
    ],
)
def test_arguments_that_do_not_fit(called: str, reason: str) -> None:
    found = describe(TypeError(BINDING.format(called)))
    assert found["kind"] == "arguments"
    assert reason in found["reason"]


def test_another_error() -> None:
    found = describe(AttributeError("no attribute 'f'"))
    assert (found["kind"], found["reason"]) == ("other", "AttributeError: no attribute 'f'")
    assert describe(TypeError("f() takes 1 argument"))["reason"] == "f() takes 1 argument"
