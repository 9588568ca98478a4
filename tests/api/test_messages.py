"""Messages name arguments as JAX does, and claim nothing that is false."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import jaxmesh as jm
from jaxmesh import errors
from jaxmesh.tensor import torch_interop
from tests import ROOT

MESH = jm.make_mesh((2, 4), ("y", "x"))
ONES = np.ones(4, np.float32)


def add(a: Any, b: Any, *, scale: Any = 1) -> Any:
    return (a + b["w"]) * scale


def named_by_jax(call: Any) -> str:
    """Returns the name of an argument in an error of JAX."""
    with pytest.raises(TypeError) as error:
        call()
    found = re.search(r"at path ([^ ]+)\.|Argument '(.+?)' compiled", str(error.value))
    assert found is not None
    return found[1] or found[2]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((ONES, {"w": object()}), {}), ((object(), {"w": ONES}), {}), ((ONES, {"w": ONES}), {"scale": object()})],
)
def test_an_argument_that_is_no_array_has_the_name_of_jax(args: Any, kwargs: Any) -> None:
    name = named_by_jax(lambda: jax.jit(add).lower(*args, **kwargs))
    for ask in (jm.jit(add, mesh=MESH).lower, jm.jit(add, mesh=MESH)):
        with pytest.raises(errors.ArgumentTypeError, match=rf"^argument {re.escape(name)} is <object"):
            ask(*args, **kwargs)


def test_an_argument_of_another_type_has_the_name_of_jax() -> None:
    wrong = ONES, {"w": np.ones(5, np.float32)}
    name = named_by_jax(lambda: jax.jit(add).lower(ONES, {"w": ONES}).compile()(*wrong))
    compiled = jm.jit(add, mesh=MESH).lower(ONES, {"w": ONES}).compile()
    with pytest.raises(
        errors.ArgumentTypeError, match=rf"argument {re.escape(name)} of add was traced as float32\[4\]"
    ):
        compiled(*wrong)


def test_a_static_argument_does_not_shift_names() -> None:
    def scaled(a: Any, count: int, b: Any) -> Any:
        return a * count + b

    with pytest.raises(errors.ArgumentTypeError, match=r"^argument b is <object"):
        jm.jit(scaled, mesh=MESH, static_argnums=1).lower(ONES, 3, object())


def test_a_sub_axis_is_not_said_to_divide_wrongly() -> None:
    text = """module {
      sdy.mesh @mesh = <["y"=2, "x"=4]>
      func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}, {}]>})
          -> tensor<8x16xf32> {
        %0 = stablehlo.tanh %x : tensor<8x16xf32>
        return %0 : tensor<8x16xf32>
      }
    }"""
    advice = "make the sub-axis an axis of the mesh, to keep it"
    with pytest.warns(errors.DroppedShardingWarning, match=advice):
        jm.from_mlir(text, mesh=MESH)
    split = text.replace('"x"=4', '"x0"=2, "x1"=2').replace('{"x":(1)2}', '{"x0"}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = jm.from_mlir(split, mesh=AbstractMesh((2, 2, 2), ("y", "x0", "x1")))
    assert [d.text for d in traced.decisions if d.kind == "asked"] == ["P('x0', None)"]


def test_the_advice_without_torch_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(torch_interop.importlib, "import_module", missing)
    with pytest.raises(errors.UnsupportedError) as error:
        torch_interop.torch_module()
    monkeypatch.undo()
    advised = re.search(r"(jaxmesh\.ttnn\.helpers) has (\w+) and (\w+)\.", str(error.value))
    assert advised is not None
    helpers = importlib.import_module(advised[1])
    tensor = getattr(helpers, advised[2])(ONES)
    np.testing.assert_array_equal(getattr(helpers, advised[3])(tensor), ONES)


def test_a_mesh_of_eight_devices_is_not_called_empty() -> None:
    with pytest.raises(errors.MeshError, match=r"\(y=2, x=4\), which is abstract: .*mesh=jaxmesh\.make_mesh"):
        jm.jit(lambda x: x, mesh=AbstractMesh((2, 4), ("y", "x")))(ONES)


def test_no_message_claims_that_a_program_runs() -> None:
    """A program without a text may have no run either, such as one with an op that XLA lacks."""
    sources = [path for path in (ROOT / "jaxmesh").rglob("*.py") if "program still runs" in path.read_text()]
    assert {path.name for path in sources} <= {"stage.py"}


def test_an_estimate_says_what_it_leaves_out() -> None:
    estimate = jm.jit(add, mesh=MESH).lower(ONES, {"w": ONES}).estimate("t3000")
    assert f"not in the time: the dispatch of {len(estimate.ops)} operations" in str(estimate)


def scaled(w: Any, x: Any) -> Any:
    return jm.full_to_shard(w["a"], P()) * x["b"][0]


def donated_twice(compiled: bool) -> Any:
    x = jax.numpy.asarray(ONES) + 1
    made = jm.jit(lambda w, x: w["a"] * x["b"][0], mesh=MESH, donate_argnums=0)
    args = {"a": x}, {"b": [x]}
    return made.lower(*args).compile()(*args) if compiled else made(*args)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: donated_twice(compiled=False), r"^argument w\['a'\] is donated.* argument x\['b'\]\[0\] is the same"),
        (lambda: donated_twice(compiled=True), r"^argument w\['a'\] is donated.* argument x\['b'\]\[0\] is the same"),
        (lambda: jm.jit(max, mesh=MESH).lower(ONES[:0], object()), r"^argument args\[1\] is <object"),
        (lambda: elsewhere(), r"^argument x\['b'\]\[0\] of scaled is on the mesh .*y=4, x=2"),
    ],
)
def test_other_messages_name_an_argument_as_jax_does(call: Any, words: str) -> None:
    with pytest.raises(errors.JaxmeshError, match=words):
        call()


def elsewhere() -> Any:
    """Calls a program with a tensor of another mesh."""
    there = jm.jit(lambda x: jm.full_to_shard(x, P()), mesh=jm.make_mesh((4, 2), ("y", "x")))(ONES)
    here = jm.jit(lambda x: jm.full_to_shard(x, P()), mesh=MESH)(ONES)
    return jm.jit(scaled, mesh=MESH).lower({"a": ONES}, {"b": [here]}).compile()({"a": ONES}, {"b": [there]})


def test_a_donation_warning_names_the_argument() -> None:
    made = jm.jit(lambda w: w["a"].sum(), mesh=MESH, in_shardings=P("x"), donate_argnums=0)
    with pytest.warns(errors.DonationWarning, match=r"argument w\['a'\] of <lambda>"):
        made.lower({"a": ONES})


@pytest.mark.parametrize("way", ["call", "compiled", "reference"])
def test_copies_that_differ_are_of_a_named_argument(way: str) -> None:
    arrays = [jax.device_put(ONES * (i == 5), d) for i, d in enumerate(MESH.devices.flat)]
    data = jax.make_array_from_single_device_arrays((4,), NamedSharding(MESH, P()), arrays)
    args = {"a": ONES}, {"b": [jm.MeshTensor(data, MESH, ())]}
    made = jm.jit(lambda w, x: jm.full_to_shard(w["a"], P()) * x["b"][0], mesh=MESH)
    lowered = made.lower(*args)
    run = {"call": made, "compiled": lowered.compile(), "reference": lowered.reference}[way]
    with pytest.raises(errors.ReplicationError, match=r"argument x\['b'\]\[0\] \(MeshTensor"):
        run(*args)
