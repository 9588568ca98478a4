"""Compiled programs stay in a folder between processes, and JAX's own settings as they were."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

from jaxmesh.jaxprs import program_cache
from jaxmesh.jaxprs.program_cache import kept_programs

STATE = ("_cache", "_cache_initialized", "_cache_checked", "_cache_used")


def state() -> list[Any]:
    """Returns JAX's cache of programs, and the user's settings."""
    module: Any = compilation_cache
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    return [*(getattr(module, name) for name in STATE), *(getattr(jax.config, name) for name in names)]


def test_programs_are_kept_and_nothing_else_changes(tmp_path: Path) -> None:
    before = state()
    with kept_programs(tmp_path / "a"):
        with kept_programs(tmp_path / "a"):
            jax.jit(lambda x: jnp.sin(x) * 3)(np.ones(7, np.float32))
        made = list((tmp_path / "a").iterdir())
    assert made
    assert state() == before
    jax.jit(lambda x: jnp.sin(x) * 5)(np.ones(9, np.float32))
    assert list((tmp_path / "a").iterdir()) == made


@pytest.mark.slow
def test_another_process_takes_them(tmp_path: Path) -> None:
    code = f"""
import jax, numpy as np
from pathlib import Path
from jaxmesh.jaxprs.program_cache import kept_programs
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
with kept_programs(Path({str(tmp_path)!r})):
    print(float(jax.jit(lambda x: x * 3 + 1)(np.float32(2))))
print("/jax/compilation_cache/cache_hits" in hits)
"""
    outs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in "ab"]
    assert [o.stdout.split() for o in outs] == [["7.0", "False"], ["7.0", "True"]]


def test_a_users_cache_goes_first(tmp_path: Path) -> None:
    from jax._src import config

    chosen: Any = config
    with chosen.compilation_cache_dir(str(tmp_path / "theirs")), kept_programs(tmp_path / "ours"):
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_others_write_is_not_read(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with kept_programs(tmp_path):
        jax.jit(lambda x: jnp.cos(x) * 7)(np.ones(11, np.float32))
    assert list(tmp_path.iterdir()) == []
    with kept_programs(Path("/proc/none")):
        assert float(jax.jit(lambda x: x * 11)(np.float32(2))) == 22


def test_old_programs_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "MOST", 4)
    os.chmod(tmp_path, 0o700)
    for number in range(6):
        (tmp_path / f"{number}").write_bytes(b"")
        os.utime(tmp_path / f"{number}", (number, number))
    with kept_programs(tmp_path):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3", "4", "5"]


def test_threads_share_it(tmp_path: Path) -> None:
    before = state()

    def work(number: int) -> None:
        with kept_programs(tmp_path / "a"):
            jax.jit(lambda x: x * number)(np.ones(number, np.float32))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state() == before
