"""A program of jaxmesh beside a text in the compiler's form: every number is counted by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from jaxmesh.analysis.judge.environment import TTNN
from jaxmesh.analysis.upstream import UpstreamRefusal
from jaxmesh.errors import ArgumentTypeError
from jaxmesh.stages.stages import Traced
from jaxmesh.stages.upstream import UpstreamResult

MESH = jm.make_mesh((2, 4), ("y", "x"))
X = np.ones((8, 16), np.float32)
THERE = "{ttcore.shard_status = #ttcore.shard_status<presharded>}"
PARTITIONED = """module {
  sdy.mesh @mesh = <["y"=2, "x"=4]>
  func.func @main(%x: tensor<8x16xf32>) -> tensor<8x4xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"y"}, {"x"}]>] out_shardings=[<@mesh, [{}, {}]>]
        manual_axes={"y", "x"} (%a: tensor<4x4xf32>) {
      %1 = "stablehlo.concatenate"(%a, %a) <{dimension = 0 : i64}>
          : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      sdy.return %1 : tensor<8x4xf32>
    } : (tensor<8x16xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}"""
TTNN_TEXT = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}} {{
  func.func public @main(%x: tensor<4x4xf32> {THERE}) -> (tensor<8x4xf32> {THERE}) {{
    %0 = "ttnn.all_gather"(%x) <{{all_gather_dim = 0 : si32, cluster_axis = 0 : ui32}}> : (tensor<4x4xf32>) -> tensor<8x4xf32> loc(#loc1)
    %1 = "ttnn.typecast"(%0) <{{dtype = #ttcore.supportedDataTypes<bf16>}}> : (tensor<8x4xf32>) -> tensor<8x4xbf16> loc(#loc1)
    %2 = "ttnn.typecast"(%1) <{{dtype = #ttcore.supportedDataTypes<f32>}}> : (tensor<8x4xbf16>) -> tensor<8x4xf32> loc(#loc1)
    %3 = "ttnn.all_reduce"(%2) <{{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}}> : (tensor<8x4xf32>) -> tensor<8x4xf32> loc(#loc2)
    %4 = "ttnn.neg"(%3) : (tensor<8x4xf32>) -> tensor<8x4xf32> loc(#loc2)
    "ttnn.deallocate"(%3) <{{force = false}}> : (tensor<8x4xf32>) -> () loc(#loc2)
    return %4 : tensor<8x4xf32>
  }}
}}
#loc1 = loc("/home/user/model.py":3:4)
#loc2 = loc("f"("/home/user/model.py":7:8 to :12))
"""  # noqa: E501
LOOP = f"""module attributes {{ttcore.meshes = #ttcore.meshes<[<"mesh" = 2x4>]>}} {{
  func.func public @main(%x: tensor<4x4xf32> {THERE}) -> (tensor<4x4xf32> {THERE}) {{
    %n = "ttnn.full"() <{{fill_value = 0 : i32, shape = #ttnn.shape<>}}> : () -> tensor<i32>
    %0:2 = "ttcore.while_loop"(%n, %x) <{{body_program = @sum, output_indices = array<i32: 1, 0>, state_count = 2 : i32, initial = #ttcore.loop_bound<0>, limit = #ttcore.loop_bound<3>, step = #ttcore.loop_bound<1>}}> : (tensor<i32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
    return %0#0 : tensor<4x4xf32>
  }}
  func.func private @sum(%n: tensor<i32>, %x: tensor<4x4xf32>) -> (tensor<i32>, tensor<4x4xf32>) {{
    %0 = "ttnn.all_reduce"(%x) <{{cluster_axis = 1 : ui32, reduce_type = #ttcore.reduce_type<sum>}}> : (tensor<4x4xf32>) -> tensor<4x4xf32> loc("/home/user/model.py":9:1)
    return %n, %0 : tensor<i32>, tensor<4x4xf32>
  }}
}}
"""  # noqa: E501


@jm.jit(mesh=MESH)
def program(x: Any) -> Any:
    total = jax.lax.psum(jm.full_to_shard(x, P("y", "x")), "x")
    return jm.shard_to_full(jax.lax.all_gather(total, "y", tiled=True), P(), assume_replicated=True)


LINE = program.__wrapped__.__code__.co_firstlineno + 2


def upstream(ttnn: str = TTNN_TEXT, **more: Any) -> UpstreamResult[Traced]:
    stages = {"shlo_compiler": PARTITIONED, "ttnn": ttnn}
    return UpstreamResult(stages, plugin="plugin 1", cluster="t3000", make=Traced, **more)


def test_bytes_and_counts_are_those_counted_by_hand() -> None:
    found = upstream().compare(program.lower(X), judge=False)
    # Ours sums shards of 64 bytes, theirs gathered ones of 128. A sum over 4 devices sends 2 * 3 times its bytes, in 2
    # groups; a gather of 64 bytes over 2 devices sends 2 * 64 bytes, in 4 groups.
    assert {(m.kind, m.axes, m.count, m.bytes, m.sent) for m in found.ours.moves} == {
        ("all_reduce", ("x",), 1, 64, 768),
        ("all_gather", ("y",), 1, 128, 512),
    }
    assert {(m.kind, m.axes, m.count, m.bytes, m.sent) for m in found.theirs.moves} == {
        ("all_gather", ("y",), 1, 128, 512),
        ("all_reduce", ("x",), 1, 128, 1536),
    }
    assert (found.ours.sent, found.theirs.sent, found.moves_less) == (1280, 2048, "ours")
    assert found.theirs.operations == {"typecast": 2, "all_gather": 1, "all_reduce": 1, "neg": 1}
    assert found.theirs.layout_changes == {"typecast": 2}
    assert found.theirs.element_types == ["bfloat16", "float32"]
    assert found.ours.element_types == ["float32"]


def test_the_text_holds_its_arguments_and_frees_a_view_with_its_tensor() -> None:
    tile = 32 * 32 * 4
    text = TTNN_TEXT.replace(
        """    %4 = "ttnn.neg"(%3)""",
        """    "ttnn.deallocate"(%x) <{force = false}> : (tensor<4x4xf32>) -> ()
    %v = "ttnn.reshape"(%3) <{shape = [1 : i32, 8 : i32, 4 : i32]}> : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %w = "ttnn.neg"(%v) : (tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
    %4 = "ttnn.neg"(%3)""",
    )
    # Whole tiles, and no sum among the devices: the operations take nothing inside.
    text = re.sub(r'"ttnn.all_reduce"\(%2\) <.*?> :', '"ttnn.abs"(%2) :', text).replace("8 : i32, 4", "64 : i32, 32")
    result = upstream(text.replace("4x4x", "32x32x").replace("8x4x", "64x32x"))
    held = result.memory()
    # At the second negation there are the argument, the absolute values and their negation; the view is these values.
    assert (held.arguments, held.results + held.temporaries) == (tile, 4 * tile)
    assert result.estimate().memory == held
    rows = {name: theirs for name, _, theirs in result.compare(program.lower(X), judge=False).rows()}
    assert rows["arguments that stay"] == f"{tile:,} B on each device"
    assert rows["with all tensors"] == f"{5 * tile:,} B on each device"


def test_what_ttnn_has_no_function_for_is_listed() -> None:
    found = upstream(LOOP).compare(program.lower(X), judge=False)
    assert found.theirs.remarks[0] == "ttcore.while_loop at no line is no function of ttnn"
    assert any("as jaxmesh lowers the text" in note for note in found.notes())


def test_the_largest_differences_are_at_their_source_lines() -> None:
    found = upstream().compare(program.lower(X), judge=False)
    assert found.differences == [
        ("/home/user/model.py:7", 0, 1536),
        (f"{__file__}:{LINE}", 768, 0),
        (f"{__file__}:{LINE + 1}", 512, 0),
        ("/home/user/model.py:3", 0, 512),
    ]


def test_the_times_are_those_of_the_estimate() -> None:
    lowered = program.lower(X)
    found = upstream().compare(lowered, judge=False)
    assert found.ours.estimate is not None
    assert found.theirs.estimate is not None
    assert found.ours.estimate.seconds == lowered.estimate("t3000").seconds
    # Each device sends 2 * 3/4 of the sum's bytes, and its own 64 bytes to the gather.
    assert found.theirs.estimate.link_bytes == {"y": 64, "x": 192}
    assert found.ours.estimate.link_bytes == {"y": 64, "x": 96}


def test_a_loop_counts_as_often_as_it_runs() -> None:
    found = upstream(LOOP).compare(program.lower(X), judge=False)
    (move,) = found.theirs.moves
    assert (move.kind, move.axes, move.count, move.bytes, move.sent) == ("all_reduce", ("x",), 3, 3 * 64, 3 * 768)
    assert ("/home/user/model.py:9", 0, 3 * 768) in found.differences
    # The text has the operations of the loop once.
    assert found.theirs.operations["all_reduce"] == 1
    assert found.moves_less == "ours"


def test_the_table_fits_and_has_every_figure() -> None:
    found = upstream().compare(program.lower(X), judge=False)
    lines = str(found).splitlines()
    assert lines[0] == "jaxmesh sends 768 B less: 1,280 B, not 2,048 B"
    assert max(map(len, lines)) <= 100
    rows = {name: (a, b) for name, a, b in found.rows()}
    assert rows["all_reduce over x"] == ("1, 768 B", "1, 1,536 B")
    assert rows["model.py:7"] == ("0 B", "1,536 B")
    assert rows["layout changes"][1] == "2 typecast"
    for text in ("all_reduce over x", "1,536 B", "model.py:7", "plugin 1"):
        assert text in found._repr_html_()
        assert text in str(found)


def test_a_refusal_is_said_with_its_reason() -> None:
    refused = upstream(refusal=UpstreamRefusal("no such reduction " * 30, "/home/user/model.py:3:4"))
    found = refused.compare(program.lower(X), judge=False)
    assert found.theirs.refusal.startswith("/home/user/model.py:3:4: no such reduction")
    assert (found.moves_less, found.differences) == ("", [])
    assert found.heading == "no program of plugin 1 to compare"
    assert "no program: model.py:3:4: no" in str(found)
    assert max(map(len, str(found).splitlines())) <= 100


def test_our_own_refusal_and_a_text_that_is_not_read_are_said() -> None:
    calling = jm.jit(lambda x: jax.pure_callback(np.sin, jax.typeof(x), x), mesh=MESH).lower(X)
    found = upstream(TTNN_TEXT.replace("ttnn.neg", "ttnn.nothing")).compare(calling, judge=False)
    assert "it calls Python on the host" in found.ours.refusal
    assert "not read by jaxmesh: line 7: ttnn.nothing has no definition" in found.theirs.refusal
    assert found.heading == "no program of jaxmesh and plugin 1 to compare"


def test_without_ttnn_a_note_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(TTNN.variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = upstream().compare(program.lower(X))
    assert found.ours.peak_bytes is None
    assert any("no peak memory" in note and "jaxmesh ttnn-env" in note for note in found.notes())


def test_another_argument_is_a_named_error() -> None:
    lowered: Any = "program"
    with pytest.raises(ArgumentTypeError, match="compare takes"):
        upstream().compare(lowered)
