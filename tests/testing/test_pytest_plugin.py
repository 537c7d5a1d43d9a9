"""The fixture that ships, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tightfit.api.leaking
import tightfit.testing.pytest_plugin

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
PLUGIN = tightfit.testing.pytest_plugin.__name__
BEFORE = """
import pytest, torch
from tightfit.card import open_card
card = open_card("virtual:8MiB")
kept = []
"""


def run(pytester: pytest.Pytester, text: str) -> pytest.RunResult:
    """Tests in a file of their own, with the plugin and without what else is installed."""
    pytester.makepyfile(BEFORE + text)
    pytester.makeini("[pytest]")
    return pytester.runpytest_inprocess(
        *("-p", "no:randomly", "-p", "no:cacheprovider"),
        *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # this process has it already
        plugins=[tightfit.testing.pytest_plugin],
    )


def test_a_test_that_leaves_a_tensor_fails_with_the_chain(pytester: pytest.Pytester) -> None:
    """After the test itself has passed."""
    result = run(
        pytester,
        """
def test_it(tightfit_leakcheck):
    kept.append(torch.zeros(16, device=card.device))
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*global: module test_a_test_that*kept*0* Tensor *16* float32*"])


def test_a_clean_test_passes_also_with_fixtures_that_hold_tensors(
    pytester: pytest.Pytester,
) -> None:
    """Pytest keeps the values of fixtures a little longer than the fixtures last."""
    result = run(
        pytester,
        """
@pytest.fixture
def before():
    return torch.zeros(16, device=card.device)

@pytest.fixture
def after(tightfit_leakcheck):
    return [torch.zeros(16, device=card.device)]

def test_it(before, tightfit_leakcheck, after):
    x = before + after[0]
    assert x.sum().item() == 0
""",
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_fails_is_not_blamed_for_its_traceback(pytester: pytest.Pytester) -> None:
    """It failed once, for its own reason."""
    result = run(
        pytester,
        """
def test_it(tightfit_leakcheck):
    x = torch.zeros(16, device=card.device)
    assert not len(x)
""",
    )
    result.assert_outcomes(failed=1)


def test_what_a_test_allows_may_stay(pytester: pytest.Pytester) -> None:
    """By kind or pattern, said in the test."""
    result = run(
        pytester,
        """
def test_it(tightfit_leakcheck):
    tightfit_leakcheck.allow("*kept*")
    kept.append(torch.zeros(16, device=card.device))
""",
    )
    result.assert_outcomes(passed=1)


def test_where_it_is_installed_pytest_finds_it_under_its_own_name() -> None:
    """So that asking for it by `-p` as well is no second one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_pytest_loads_no_torch_for_it() -> None:
    """Every run of pytest loads it, wherever tightfit is installed."""
    code = f"import sys, {PLUGIN}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
