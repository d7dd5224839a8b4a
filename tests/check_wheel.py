"""Checks a built wheel: unpacked on its own, the package imports from there and its command line answers.

python tests/check_wheel.py dist/g2uardfl-*.whl
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile

CODE = """
import sys, g2uardfl
assert g2uardfl.__file__.startswith(sys.argv[1]), g2uardfl.__file__
import importlib.resources
assert importlib.resources.files("g2uardfl").joinpath("py.typed").is_file()
from g2uardfl.report.page import render
assert "<script>" in render([], "no runs"), "the templates of the page are missing"
from g2uardfl.experiments.paper.table import TABLES, load
assert all(load(name).cells for name in TABLES)
for registry in (g2uardfl.aggregators, g2uardfl.attacks, g2uardfl.tasks):
    for name in registry.names():
        registry.find(name)
sys.argv = ["g2uardfl", "--version"]
from g2uardfl.cli import main
main()
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(sys.argv[1]) as wheel:
            assert any(name.endswith("LICENSE") for name in wheel.namelist()), "the wheel has no licence"
            wheel.extractall(folder)
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{CODE}", folder]
        subprocess.run(command, check=True, cwd=folder)


if __name__ == "__main__":
    main()
