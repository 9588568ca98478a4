"""Random programs of all element types, also without elements and with Fourier transforms, beside NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxmesh as jm
from tests.generators import wide_programs
from tests.generators.oracles import count_of

PROGRAMS = count_of(1200, 60)
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part: int) -> None:
    over = wide_programs.meshes()
    for seed in range(part, PROGRAMS, PARTS):
        with jax.enable_x64(seed % 8 < PARTS):
            program = wide_programs.draw(seed, over)
            wrong = wide_programs.fault(program)
            assert wrong is None, f"seed {seed}: {wrong}\n{program}"
    jax.clear_caches()


def test_a_wrong_value_and_an_error_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = wide_programs.draw(17, wide_programs.meshes())
    assert wide_programs.fault(program) is None
    want = program.expected[0]
    other = ~want.x if want.x.dtype == np.bool_ else want.x + np.ones((), want.x.dtype)
    program.expected[0] = wide_programs.Value(other, want.exact)
    assert "differs" in str(wide_programs.fault(program))
    program.expected[0] = want
    monkeypatch.setattr(jm.Lowered, "run", None)
    assert "TypeError" in str(wide_programs.fault(program))


@pytest.mark.parametrize("shape", [(3, 4), (9, 18), (4, 16), (2, 3, 8)])
def test_a_fourier_transform_of_gathered_columns_and_its_inverse(shape: tuple[int, ...]) -> None:
    """XLA plans such a transform along columns, which its CPU client does not run."""
    mesh, split = jm.make_mesh((2,), ("x",)), P(*[None] * (len(shape) - 1), "x")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    f = jm.jit(lambda x: jnp.real(jnp.fft.ifft(jnp.fft.fft(x))), mesh=mesh, in_shardings=split)
    np.testing.assert_allclose(f(x), x, atol=1e-5)
