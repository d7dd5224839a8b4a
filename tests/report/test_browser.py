"""The page in a real browser: it loads nothing, complains about nothing, and its controls work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from g2uardfl.aggregators.base import Edge, RoundReport, Verdict
from g2uardfl.report.page import write_report
from helpers.audits import write_audit
from helpers.browser import Browser, chromium
from helpers.made_up_runs import made_up_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("browser")


@pytest.fixture(scope="module")
def browser(folder) -> Iterator[Browser]:
    with chromium(folder) as started:
        yield started


@pytest.fixture(scope="module")
def page(folder) -> Path:
    """The page of one run."""
    run = made_up_run(folder / "run", attack="black_box", defense="g2uardfl", attack_from=3)
    return write_report([run], folder / "one.html")


@pytest.fixture(scope="module")
def sweep(folder) -> Path:
    """The page of 16 runs."""
    runs = [
        made_up_run(folder / f"{defense}{attack}{seed}", defense=defense, attack=attack, seed=seed, rounds=5)
        for defense in ("fedavg", "krum", "flame", "g2uardfl")
        for attack in ("black_box", "pgd")
        for seed in (0, 1)
    ]
    return write_report(runs, folder / "many.html")


@pytest.fixture(scope="module")
def crowd(folder) -> Path:
    """The page of a run with 300 clients."""
    run = made_up_run(folder / "crowd", clients=300, per_round=60, attack="pgd", defense="g2uardfl")
    return write_report([run], folder / "crowd.html")


@pytest.fixture(scope="module")
def federation(folder) -> Path:
    """The page of an audit, with ids as long as Flower's."""
    verdicts = {2**64 - 3: Verdict("accepted", "Like the others."), 2**63: Verdict("malicious", "Unlike the others.")}
    report = RoundReport(verdicts, seconds={"reading": 0.1}, edges=(Edge(2**64 - 3, 2**63, 0.5),))
    return write_report([write_audit(folder / "audit.jsonl", *[report] * 3)], folder / "audit.html")


@pytest.mark.parametrize("name", ["page", "sweep", "crowd", "federation"])
@pytest.mark.parametrize("width", [1200, 390])
def test_a_page_is_silent_requests_nothing_and_fits_the_window(browser, request, name, width):
    path = request.getfixturevalue(name)
    browser.open(path, width)
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]


def test_the_slider_shows_the_graph_of_another_round(browser, page):
    browser.open(page)
    shown = "return [...document.querySelectorAll('.frame:not([hidden])')].map(one => one.dataset.label)"
    assert browser.run(shown) == ["12"]
    browser.run("""
        const slider = document.querySelector('input[type=range]');
        slider.value = 3;
        slider.dispatchEvent(new Event('input'));
    """)
    assert browser.run(shown) == ["4"]
    assert browser.texts("output") == ["4"]


def test_the_filter_leaves_the_clients_that_match(browser, page):
    browser.open(page)
    truth = ".clients tbody tr td:nth-child(2)"
    assert set(browser.texts(truth)) == {"malicious", "honest"}
    browser.driver.find_element("css selector", ".controls select").send_keys("malicious")
    assert browser.texts(truth) == ["malicious"] * 5
    browser.driver.find_element("css selector", ".controls input").send_keys("nothing like this")
    assert browser.texts(truth) == []
    assert browser.texts(".count") == ["0 of 20"]


def test_a_click_on_a_heading_sorts_by_number(browser, page):
    browser.open(page)
    for expected in (list(range(20)), list(range(19, -1, -1))):
        browser.driver.find_element("css selector", ".clients th").click()
        assert [int(text) for text in browser.texts(".clients tbody td:first-child")] == expected


def test_a_chosen_client_is_highlighted_everywhere(browser, page):
    browser.open(page)
    node = "return document.querySelector('.frame:not([hidden]) .node').dataset.client"
    client = browser.run(node)
    browser.run("document.querySelector(`.clients tr[data-client='${arguments[0]}']`).click()", client)
    assert browser.run("return document.querySelectorAll('.row-picked, .curve-picked').length") == 2
    assert browser.run("return document.querySelector('.node.picked').dataset.client") == client
    browser.run("document.querySelector('tr.chosen').click()")
    assert browser.run("return document.querySelectorAll('.row-picked, .curve-picked, .picked').length") == 0


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("svg[data-role=timeline] .bar.malicious", "score"),
        ("svg[data-role=graph] .frame:not([hidden]) .node", "Round 12, client"),
        ("svg[data-role=readout] .line", "g2uardfl"),
    ],
)
def test_pointing_at_a_figure_explains_it(browser, page, place, expected):
    browser.open(page)
    # The start of the path; for a cell, its upper left corner.
    x, y = browser.run(
        """
        const path = document.querySelector(arguments[0]), svg = path.closest('svg');
        svg.scrollIntoView({block: 'start'});
        const [, left, top] = path.getAttribute('d').match(/M([\\d.]+) ([\\d.]+)/);
        const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
        return [box.left + scale * left + 2, box.top + scale * top + 2];
        """,
        place,
    )
    browser.point(x, y)
    assert expected in browser.texts("#tip")[0]


def test_a_series_chosen_in_the_legend_is_the_only_one_that_does_not_fade(browser, sweep):
    browser.open(sweep)
    faint = """
        const faded = [...document.querySelectorAll('figure[data-name=asr] .faint')];
        return new Set(faded.map(one => one.classList[1])).size;
    """
    key = browser.driver.find_element("css selector", "figure[data-name=asr] .legend [data-series]")
    key.click()
    assert browser.run(faint) == 3
    key.click()
    assert browser.run(faint) == 0


def test_the_theme_switches_and_is_remembered(browser, page):
    browser.open(page)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    browser.driver.find_element("id", "theme").click()
    dark = browser.run(ground)
    assert sum(map(int, dark[4:-1].split(","))) < 150 < sum(map(int, light[4:-1].split(",")))
    browser.driver.refresh()
    assert browser.run(ground) == dark
    browser.driver.find_element("id", "theme").click()
    assert browser.run(ground) == light


def test_the_button_saves_a_figure_as_svg(browser, page):
    browser.open(page)
    browser.run("""
        window.saved = null;
        URL.createObjectURL = (blob) => { window.saved = blob.text(); return '#'; };
    """)
    browser.driver.find_element("css selector", "figure[data-name=asr] .save").click()
    saved = browser.driver.execute_async_script("window.saved.then(arguments[0])")
    tree = ElementTree.fromstring(saved)
    assert "var(" not in saved
    assert "attack begins" in "".join(tree.itertext())
