"""`jaxmesh selftest`: a short check on the user's machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxmesh.cli import main, selftest


@pytest.mark.slow
def test_it_holds(capsys: Any) -> None:
    assert main.main(["selftest"]) == main.PASSED
    assert "selftest holds: 47 comparisons" in capsys.readouterr().out


def test_it_can_fail(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    # The demo's own tests see it fail.
    monkeypatch.setattr(selftest, "run", lambda *_: SimpleNamespace(checks=[], holdings=[]))
    plain = selftest.PROGRAMS[selftest.product]
    monkeypatch.setattr(selftest, "PROGRAMS", {selftest.product: lambda x, w: plain(x, w) + 1})
    assert main.main(["selftest", "--seed", "3"]) == main.FAILED
    out = capsys.readouterr().out
    assert out.count("FAIL product, ") == 3
    assert out.count("FAIL ") == 3
    assert "selftest FAILED" in out
