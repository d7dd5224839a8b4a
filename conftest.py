"""Leaves out of the collection what needs Flower where Flower is not installed; tests themselves skip and say so."""

import importlib.util

_NEEDS_FLOWER = ["src/g2uardfl/flower/*.py", "tests/flower/*.py", "tests/helpers/flower*.py"]
collect_ignore_glob = [] if importlib.util.find_spec("flwr") else _NEEDS_FLOWER
