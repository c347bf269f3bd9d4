"""Where results go: each in JSON as soon as it is there, all of them as Markdown and as one page at the end."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Any

from appliance import whole_file
from appliance.bench import report
from appliance.errors import CheckError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from appliance.bench.result import Result

MARKDOWN, PAGE = "report.md", "report.html"


class Output:
    """Collects results. Raises ConfigurationError at once for a folder that cannot be written."""

    def __init__(self, folder: Path | None, *, as_json: bool) -> None:
        self._folder = folder
        self._as_json = as_json
        self.results: list[Result] = []
        if folder is not None:
            probe = folder / ".written"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise ConfigurationError(f"--out {folder}: cannot be written ({error.strerror})") from None

    def add(self, result: Result, name: str) -> None:
        """Keep a result, and write it. Where it cannot be written, `finish` prints all in JSON: nothing is lost."""
        self.results.append(result)
        if self._folder is None:
            return
        file = self._folder / f"{name}.json"
        try:
            result.write(file)
        except OSError as error:
            self._folder, self._as_json = None, True
            raise CheckError(f"{file}: cannot be written ({error.strerror}); it is on standard output") from None

    def finish(self) -> None:
        """Print all results and write the reports."""
        text = report.markdown(self.results)
        if self._as_json:
            print(to_json(self.results))
        else:
            print(text)
        if self._folder is not None:
            write(self._folder / MARKDOWN, text)
            write_page(self._folder / PAGE, self.results)


def to_json(results: Sequence[Result]) -> str:
    """Return one result as an object, several as an array."""
    written = [result.to_json() for result in results]
    return json.dumps(written[0] if len(written) == 1 else written, indent=1, ensure_ascii=False)


def write_page(
    file: Path, results: Sequence[Result], roofline: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
) -> None:
    """Write the page, or say on standard error why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"{file.name} is not written: its plots need matplotlib, of the extra `bench`", file=sys.stderr)
        return
    from appliance.bench import report_page

    write(file, report_page.page(results, roofline, notes))


def write(file: Path, text: str) -> None:
    """Replace `file` by `text`. Raises CheckError where that fails; the old file then stands."""
    try:
        whole_file.write(file, text)
    except OSError as error:
        raise CheckError(f"{file}: cannot be written ({error.strerror})") from None
