"""How tests are shared out between workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.paths import ROOT

if TYPE_CHECKING:
    import pytest


def test_engines_begin_first_though_other_files_have_more_tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_xdist_make_scheduler")
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    many = "import pytest\n@pytest.mark.parametrize('x', range(5))\ndef test_it(x): pass"
    for file, content in (("tests/a/test_many.py", many), ("tests/system/engine/test_one.py", "def test_it(): pass")):
        path = pytester.path / file
        path.parent.mkdir(parents=True)
        path.write_text(content)
    result = pytester.runpytest_subprocess("--numprocesses", "1", "-v", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*PASSED*tests/system/engine/test_one.py::test_it*", "*PASSED*test_many.py::test_it*"])
