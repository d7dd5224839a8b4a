"""The log line of a round."""

from __future__ import annotations

import logging

import pytest

from g2uardfl.aggregators.base import Event, RoundReport, Verdict
from g2uardfl.federation import log


def report(*kinds: str, note: str = "") -> RoundReport:
    events = tuple(Event(kind, f"This is about {kind}.") for kind in kinds)
    return RoundReport({}, " ".join([*(event.message for event in events), note]).strip(), events)


@pytest.mark.parametrize(
    ("kinds", "level"),
    [
        ((), logging.INFO),
        (("something_new",), logging.INFO),
        (("rolled_back",), logging.WARNING),
        (("eliminated",), logging.INFO),
        (("model_kept",), logging.WARNING),
        (("something_new", "rolled_back"), logging.WARNING),
    ],
)
def test_a_change_of_the_model_besides_training_is_a_warning(kinds, level):
    assert log.level(report(*kinds)) == level


def test_every_event_is_named_with_its_message():
    line = log.line("g2uardfl", 4, report("rolled_back", "something_new", note="A remark."), 0.25)
    assert line.endswith(
        "[0.25 s] rolled_back, something_new: This is about rolled_back. This is about something_new. A remark."
    )


def test_a_note_without_events_is_printed():
    assert log.line("fedavg", 4, report(note="A remark."), 0.25).endswith("[0.25 s] A remark.")


def test_a_quiet_round_has_only_counts():
    assert log.line("fedavg", 4, report(), 0.25) == (
        "fedavg round 4: 0 accepted, 0 held out, 0 malicious, 0 invalid [0.25 s]"
    )


def test_line_breaks_and_control_characters_of_clients_are_escaped():
    verdicts = {"evil\n\x1b[31m2026 ERROR": Verdict("malicious", "Similar to 'a\nb'.")}
    line = log.line("g2uardfl", 1, RoundReport(verdicts, "About \u2028 x\r."), 0.0)
    assert line.isprintable()
    assert "evil\\n\\x1b[31m2026 ERROR: Similar to 'a\\nb'" in line


def test_the_first_clients_of_each_decision_are_named_with_shortened_reasons():
    verdicts = {client: Verdict("malicious", "x" * 5000) for client in range(10)}
    verdicts["late"] = Verdict("invalid", "It did not reply in time.")
    line = log.line("g2uardfl", 1, RoundReport(verdicts), 0.0)
    assert "10 malicious (0: xxx" in line
    assert "; and 8 more)" in line
    assert "1 invalid (late: It did not reply in time)" in line
    assert len(line) < 1000
