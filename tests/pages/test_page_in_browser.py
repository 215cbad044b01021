"""The page of a run in Chromium: silent, closed, inert, usable by mouse, keyboard and screen reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from tests.pages.browser import Browser
from tests.pages.made_runs import EVIL

WIDTHS_AND_SCHEMES = [(400, False), (400, True), (1400, False), (1400, True)]


@pytest.fixture(
    scope="module", params=WIDTHS_AND_SCHEMES, ids=lambda p: f"{p[0]}px-{'dark' if p[1] else 'light'}"
)
def drawn(request: pytest.FixtureRequest, chromium: Browser, made_page: Path) -> Browser:
    """The page with all its charts, at each width and in each scheme."""
    width, dark = request.param
    chromium.open(made_page, width=width, dark=dark)
    assert chromium.draw_everything() == 6
    return chromium


def test_nothing_is_complained_of_and_nothing_leaves_the_file(drawn: Browser, made_page: Path) -> None:
    for select in drawn.all("figure select"):
        Select(select).select_by_index(1)
    assert drawn.complaints() == []
    requests = drawn.requests()
    assert made_page.as_uri() in requests
    assert [url for url in requests if url != made_page.as_uri() and not url.startswith("data:")] == []


def test_everything_fits_the_window(drawn: Browser) -> None:
    width, scroll = drawn.run(
        "return [document.documentElement.clientWidth, document.documentElement.scrollWidth]"
    )
    assert scroll <= width
    for plot in drawn.all(".plot svg.main-svg"):
        assert plot.size["width"] <= width


def test_text_stands_out_from_its_ground(drawn: Browser) -> None:
    """At least 4.5 : 1, as WCAG 2.1 asks for text (AA)."""
    low = drawn.run(
        """
        const parse = (c) => c.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => {
          const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
        };
        const ground = (e) => {
          for (; e; e = e.parentElement) {
            const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] === 1) return c;
          }
        };
        const low = [];
        for (const e of document.querySelectorAll("h1, h2, p, a, li, td, th, dt, dd, button, label, caption, figcaption, code, summary")) {
          if (e.matches(".better, .worse")) continue;
          const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
          const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
          if (ratio < 4.5) low.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)}: ${e.textContent.slice(0, 40)}`);
        }
        return [...new Set(low)];
        """
    )
    assert low == []


@pytest.fixture
def page(chromium: Browser, made_page: Path) -> Browser:
    chromium.open(made_page)
    return chromium


def comparison(page: Browser) -> WebElement:
    return page.all(".tableblock")[1]


def column(table: WebElement, title: str) -> list[str]:
    found: list[str] = table.parent.execute_script(
        """
        const [table, title] = arguments;
        const index = [...table.querySelectorAll("thead th")].findIndex((head) => head.innerText.startsWith(title));
        return [...table.querySelectorAll("tbody tr.row")].map((row) => row.children[index].innerText);
        """,
        table,
        title,
    )
    return found


def head_button(table: WebElement, title: str) -> WebElement:
    return next(b for b in table.find_elements(By.CSS_SELECTOR, "thead button") if b.text.startswith(title))


def test_hostile_text_is_shown_as_text(page: Browser) -> None:
    page.draw_everything()
    for button in page.all("td.open button")[:1]:
        button.click()
    for details in page.all("details.log summary"):
        details.click()
    statuses = page.all("section")[3]
    statuses.find_elements(By.CSS_SELECTOR, "td.open button")[0].click()
    statuses.find_elements(By.CSS_SELECTOR, "td.open button")[-1].click()
    text = page.run("return document.getElementById('app').innerText")
    assert f"{EVIL} [bs=8]" in text
    assert f"signal SIGSEGV {EVIL}" in text
    assert f"line\\x1b[31m red\n{EVIL}" in text  # the end of a log, its escape codes spelled out
    assert EVIL in [value.text for value in page.all("dd")]  # a package of the environment
    hosts = next(t for t in page.all("table") if t.find_element(By.TAG_NAME, "caption").text == "Hosts")
    assert column(hosts, "Its own name") == [EVIL, EVIL]
    assert page.run("return document.querySelectorAll('#app img, #app script, #app iframe').length") == 0
    assert page.run("return document.scripts.length") == 3
    assert page.complaints() == []


def test_hostile_text_in_a_chart_is_text(page: Browser) -> None:
    page.draw_everything()
    shown = page.run(
        """
        const timeline = [...document.querySelectorAll(".plot")].find((p) => p.getAttribute("aria-label").startsWith("What the"));
        const waiting = timeline.data.find((trace) => trace.name === "waiting");
        Plotly.Fx.hover(timeline, [{ curveNumber: timeline.data.indexOf(waiting), pointNumber: 0 }]);
        return timeline.querySelector(".hoverlayer").textContent;
        """
    )
    assert f"waiting for {EVIL}" in shown


def test_no_script_but_the_pages_own_can_run_and_nothing_can_be_fetched(
    chromium: Browser, made_page: Path
) -> None:
    chromium.open(made_page)
    ran = chromium.run(
        """
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>");
        return window.ran === true;
        """
    )
    blocked = chromium.run("return fetch('https://example.invalid/').then(() => 'sent', (e) => 'blocked')")
    assert (ran, blocked) == (False, "blocked")
    assert all("Content Security Policy" in line for line in chromium.complaints())


def test_a_suspect_time_has_the_mark_that_it_has_in_a_terminal(page: Browser) -> None:
    table = comparison(page)
    told = set(zip((t[-1:] == "?" for t in column(table, "Median")), column(table, "Status"), strict=True))
    assert told == {(True, "? ok, suspect"), (False, "✓ ok"), (False, "✗ crashed")}


def test_a_column_sorts_by_its_numbers(page: Browser) -> None:
    table = comparison(page)
    button = head_button(table, "Median")
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "none"
    button.click()
    times = column(table, "Median")
    numbers = [float(t.rstrip("?")) for t in times if t]
    assert len(numbers) == 50
    assert numbers == sorted(numbers)
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"


def test_sorting_and_opening_work_from_the_keyboard(page: Browser) -> None:
    table = comparison(page)
    button = head_button(table, "Median")
    page.run("arguments[0].focus()", button)
    button.send_keys(Keys.ENTER)
    button.send_keys(Keys.ENTER)
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    numbers = [float(t.rstrip("?")) for t in column(table, "Median") if t]
    assert numbers == sorted(numbers, reverse=True)
    assert page.run("return getComputedStyle(arguments[0]).outlineStyle", button) == "solid"
    opener = table.find_element(By.CSS_SELECTOR, "td.open button")
    opener.send_keys(Keys.SPACE)
    assert opener.get_attribute("aria-expanded") == "true"
    panel = page.find(f"#{opener.get_attribute('aria-controls')}")
    assert "farbench repro 20250102T030405Z-abcdef" in panel.text
    assert "Cosine" in panel.text


def test_missing_values_come_last_in_both_directions(page: Browser) -> None:
    table = comparison(page)
    for _ in range(2):
        head_button(table, "Median").click()
        table.find_element(By.XPATH, "./button").click()
        times = column(table, "Median")
        assert len(times) == 96
        assert times[-8:] == [""] * 8
        assert "" not in times[:-8]


def test_words_and_menus_filter(page: Browser) -> None:
    table = comparison(page)
    table.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("M=256 gpu-b:1")
    page.wait_for(
        "return document.querySelectorAll('.count')[1].textContent === '6 of 96 rows'", "the filter"
    )
    assert {case[:5] for case in column(table, "Case")} == {"m=256"}
    menus = {
        label.text.split("\n")[0].strip(): Select(label.find_element(By.TAG_NAME, "select"))
        for label in table.find_elements(By.CSS_SELECTOR, "label")
        if label.find_elements(By.TAG_NAME, "select")
    }
    assert set(menus) == {"Backend", "Status", "Place"}
    menus["Backend"].select_by_visible_text("torch")
    assert column(table, "Backend") == ["torch", "torch"]
    table.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys(" nowhere")
    page.wait_for(
        "return document.querySelectorAll('tbody')[1].innerText.includes('No row matches')", "no row"
    )


def test_speed_ups_are_numbers_and_colours(page: Browser) -> None:
    table = page.all("section")[2].find_element(By.CSS_SELECTOR, ".tableblock")
    better = table.find_element(By.CSS_SELECTOR, "td.better")
    worse = table.find_element(By.CSS_SELECTOR, "td.worse")
    assert better.text.startswith("1.3")
    assert better.text.endswith("×")
    assert worse.text == "0.45×?"
    colors = {page.run("return getComputedStyle(arguments[0]).backgroundColor", e) for e in (better, worse)}
    assert len(colors) == 2


def test_on_paper_every_number_stands_under_its_head(chromium: Browser, made_page: Path) -> None:
    chromium.open(made_page, width=760, dark=True)
    chromium.as_printed(dark=True)
    apart = chromium.run(
        """
        const apart = [];
        for (const table of document.querySelectorAll("table")) {
          const lefts = (row) => [...row.cells].filter((cell) => cell.offsetWidth).map((cell) => Math.round(cell.getBoundingClientRect().left));
          const [head, row] = [table.tHead.rows[0], table.tBodies[0].querySelector("tr.row")];
          if (row && String(lefts(head)) !== String(lefts(row))) apart.push([table.caption.textContent, lefts(head), lefts(row)]);
        }
        return apart;
        """
    )
    assert apart == []
    assert chromium.run("return document.documentElement.scrollWidth") <= 760
    ground, text = chromium.run(
        "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
    )
    assert (ground, text) == ("rgb(255, 255, 255)", "rgb(27, 31, 36)"), "no light text on white paper"


def test_a_screen_reader_finds_its_way(page: Browser) -> None:
    page.draw_everything()
    faults = page.run(
        """
        const faults = [];
        const ids = [...document.querySelectorAll("#app [id]")].map((e) => e.id).filter((id) => /^(section|details)-/.test(id));
        if (new Set(ids).size !== ids.length) faults.push("an id twice");
        for (const t of document.querySelectorAll("table")) {
          if (!t.caption) faults.push("a table without a caption");
          for (const th of t.querySelectorAll("th")) if (!th.scope) faults.push("a head without a scope");
          for (const row of t.tBodies[0].querySelectorAll("tr.row")) if (!row.querySelector("th[scope=row]")) faults.push("a row without a head");
        }
        for (const p of document.querySelectorAll(".plot"))
          if (p.getAttribute("role") !== "img" || p.getAttribute("aria-label").length < 20) faults.push("a chart without words");
        for (const i of document.querySelectorAll("#app input, #app select")) if (!i.labels.length) faults.push("a control without a label");
        for (const b of document.querySelectorAll("#app button")) if (!(b.ariaLabel || b.textContent)) faults.push("a button without a name");
        for (const s of document.querySelectorAll("section")) if (!document.getElementById(s.getAttribute("aria-labelledby"))) faults.push("a section without a name");
        for (const a of document.querySelectorAll("nav a")) if (!document.querySelector(a.hash)) faults.push("a link to nowhere");
        if (document.documentElement.lang !== "en" || document.querySelectorAll("h1").length !== 1 || !document.querySelector("main")) faults.push("a page without its marks");
        return faults;
        """
    )
    assert faults == []


def test_ten_thousand_rows_open_sort_and_filter(chromium: Browser, big_page: Path) -> None:
    chromium.open(big_page)
    table = comparison(chromium)
    assert table.find_element(By.CSS_SELECTOR, ".count").text == "10000 rows, the first 50 shown"
    assert len(column(table, "Case")) == 50
    head_button(table, "Median").click()
    head_button(table, "Median").click()
    assert column(table, "Case")[0] == "m=3333"  # of the last case only the fastest backend fits
    table.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("m=3000")
    chromium.wait_for(
        "return document.querySelectorAll('.count')[1].textContent === '3 of 10000 rows'", "the filter"
    )
    assert chromium.draw_everything() == 5
    assert chromium.complaints() == []
