"""Leaves out of the collection what needs Flower where Flower is not installed; tests themselves skip and say so."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["src/g2uardfl/flower/*.py", "tests/flower_*.py"]
