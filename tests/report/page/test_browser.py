"""The page in a real Chromium, opened from a file."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.report.page import records
from tests.report.page.test_page import hostile_events
from tightfit.report.page import page
from tightfit.units import format_bytes

SHOTS = Path(__file__).parents[3] / "build" / "page"
"""Screenshots are kept here, for somebody to look at."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
BINARY = next((found for found in map(shutil.which, NAMES) if found), None)
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    BINARY is None or DRIVER is None,
    reason="no Chromium with its chromedriver on PATH (Debian: chromium, chromium-driver)",
)
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
TimeoutException = pytest.importorskip("selenium.common.exceptions").TimeoutException
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

JOBS = {
    "seed": lambda: records.of(records.seed_job()),
    "streamed": lambda: records.of(records.streamed_job()),
    "hostile": lambda: records.of(hostile_events()),
    "empty": lambda: records.of([]),
}


class Browser:
    """A window of Chromium, and what it said and asked for."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        for name, job in JOBS.items():
            (folder / f"{name}.html").write_text(page(job()), encoding="utf-8")
        self.folder = folder

    def open(self, name: str, *, width: int = 1200, scheme: str = "light") -> None:
        """Show a page anew."""
        phone = width < 600
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=phone,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", media="", features=[feature])
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get((self.folder / f"{name}.html").as_uri())
        self.script("localStorage.clear()")

    def tells(self, selector: str, words: str) -> bool:
        """Whether pointing at an element shows a note with these words. Scrolling hides it, and a
        busy machine tells of that late: then it is pointed at again.
        """
        for _ in range(5):
            self.hover("h1", 0.1)
            self.hover(selector, 0.5)
            if self.says("tip", words, seconds=1):
                return True
        return False

    def says(self, identifier: str, words: str, *, seconds: float = 5) -> bool:
        """Whether an element comes to show these words: a busy machine draws late."""
        until = WebDriverWait(self.driver, seconds)
        with suppress(TimeoutException):
            until.until(lambda _: words in self.text(identifier))
        return words in self.text(identifier)

    def command(self, name: str, **arguments: Any) -> Any:
        """One of Chromium's own."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def script(self, code: str, *arguments: Any) -> Any:
        """What some JavaScript gives back."""
        return self.driver.execute_script(code, *arguments)

    def text(self, identifier: str) -> str:
        """Of an element, as it is shown."""
        return str(
            self.script("return document.getElementById(arguments[0]).innerText", identifier)
        )

    def press(self, *keys: str) -> None:
        """On what is focused."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def hover(self, selector: str, part: float) -> None:
        """The pointer goes to a part of an element's width."""
        element = self.driver.find_element("css selector", selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        offset = round((part - 0.5) * element.size["width"])
        actions = webdriver.ActionChains(self.driver, duration=0)
        actions.move_to_element_with_offset(element, offset, 0).perform()

    def asked(self) -> list[str]:
        """Addresses of everything that was requested."""
        messages = [
            json.loads(each["message"])["message"] for each in self.driver.get_log("performance")
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 8000), "scale": 1}
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        SHOTS.mkdir(parents=True, exist_ok=True)
        (SHOTS / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests of this file."""
    options = webdriver.ChromeOptions()
    options.binary_location = BINARY
    wanted = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        wanted.append("--no-sandbox")
    for argument in wanted:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=DRIVER)
    )
    try:
        yield Browser(driver, tmp_path_factory.mktemp("pages"))
    finally:
        driver.quit()


@pytest.mark.parametrize("name", JOBS)
def test_it_opens_from_a_file_without_a_complaint_and_asks_nobody(
    browser: Browser, name: str
) -> None:
    """The console is empty, and the only request is for the file itself."""
    browser.open(name)
    assert browser.script("return document.documentElement.classList.contains('scripted')")
    assert browser.driver.get_log("browser") == []
    asked = browser.asked()
    elsewhere = [each for each in asked if not each.startswith(("file:", "data:", "about:"))]
    assert elsewhere == []
    assert sum(each.startswith("file:") for each in asked) == 1


def test_hostile_names_run_nothing(browser: Browser) -> None:
    """Also where the script writes them, below the cursor and in notes."""
    browser.open("hostile")
    browser.hover("#plot", 0.2)
    assert browser.says("now-before", "onerror")
    assert browser.tells(".band-oom", "onerror")
    assert browser.script("return window.pwned === undefined && !document.querySelector('img')")


def drawn(browser: Browser, selector: str) -> int:
    """The height in bytes at which the upper edge of something is drawn in the first figure."""
    part = browser.script(
        """const plot = document.querySelector("#plot svg").getBoundingClientRect();
        const box = document.querySelector(arguments[0]).getBoundingClientRect();
        return (plot.bottom - box.top) / plot.height;""",
        selector,
    )
    top = browser.script('return JSON.parse(document.getElementById("trace").textContent).top')
    return round(part * top)


def test_the_failed_peak_and_the_floor_are_drawn_where_the_trace_has_them(browser: Browser) -> None:
    """Heights on the screen, to three pixels, which are 30 MiB here."""
    browser.open("seed")
    near = 30 * records.MIB
    assert drawn(browser, "#high-line") == pytest.approx(records.FAILED_PEAK, abs=near)
    floor = f'#plot .floor[data-bytes="{records.FLOOR}"]'
    assert drawn(browser, floor) == pytest.approx(records.FLOOR, abs=near)
    assert drawn(browser, ".budget") == pytest.approx(records.BUDGET, abs=near)
    refused = 2_960 * records.MIB + records.REFUSED
    assert drawn(browser, ".refused") == pytest.approx(refused, abs=near)
    browser.shoot("light")


def test_pointing_at_a_moment_says_what_was_there(browser: Browser) -> None:
    """Sizes, who did it, and what came before."""
    browser.open("seed")
    browser.hover("#plot", 2.02 / 5.21)
    assert browser.says("now-allocated", format_bytes(records.FAILED_PEAK))
    assert browser.says("now-doing", "encode: whole (this try fails)")
    assert browser.says("now-who", format_bytes(records.FLOOR))
    assert browser.says("now-before", "encode: whole begins")


def test_pointing_at_a_streamed_job_names_the_blocks(browser: Browser) -> None:
    """The largest that were on the card then."""
    browser.open("streamed")
    browser.hover("#plot", 0.8)
    assert browser.says("now-who", "transformer_blocks.4: 320.0 MiB")
    assert browser.says("now-who", "activations and the rest")
    assert browser.text("now-code") == "nothing that was watched"
    browser.script("""const plot = document.getElementById("plot");
        plot.focus();
        plot.dispatchEvent(new KeyboardEvent("keydown", { key: "p" }));""")
    assert browser.text("now-code") == "attention.py:88 forward: 700.0 MiB"
    browser.shoot("streamed")


def test_arrows_move_along_the_curve(browser: Browser) -> None:
    """From sample to sample; F goes to the failed try, P to the peak, plus zooms."""
    browser.open("seed")
    browser.script('document.getElementById("plot").focus()')
    now = 'return Number(document.getElementById("plot").getAttribute("aria-valuenow"))'
    browser.press("p")
    assert browser.script(now) == pytest.approx(2.0)
    browser.press(webdriver.Keys.ARROW_RIGHT)
    assert browser.script(now) == pytest.approx(2.05)
    browser.press(webdriver.Keys.ARROW_LEFT, webdriver.Keys.ARROW_LEFT)
    assert browser.script(now) == pytest.approx(1.6)
    browser.press("f")
    assert browser.script(now) == pytest.approx(2.05)
    before = browser.text("seconds")
    browser.press("+", "+", "+")
    assert browser.text("seconds") != before
    browser.press("0")
    assert browser.text("seconds") == before


def test_all_figures_are_reached_by_keyboard(browser: Browser) -> None:
    """Each group of marks is one stop; arrows go from mark to mark, and each says what it is."""
    browser.open("streamed")
    stops = browser.script("return document.querySelectorAll('.rove [tabindex=\"0\"]').length")
    groups = browser.script("return document.querySelectorAll('.rove').length")
    assert stops == groups
    browser.script("document.querySelector('#residency [tabindex=\"0\"]').focus()")
    assert browser.says("tip", "transformer_blocks.0")
    browser.press(webdriver.Keys.ARROW_DOWN, webdriver.Keys.ARROW_DOWN)
    assert browser.says("tip", "transformer_blocks.1")
    label = browser.script("return document.activeElement.getAttribute('aria-label')")
    assert label == browser.text("tip")


CONTRAST = """
const light = (color) => {
  const parts = color.match(/[\\d.]+/g).slice(0, 3).map((each) => each / 255);
  const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const element = document.querySelector(arguments[0]);
const card = element.closest("section, .figures > div, .advice");
const one = light(getComputedStyle(element).color);
const other = light(getComputedStyle(card).backgroundColor);
return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
"""
"""Of the text of an element against the card it is on, as WCAG 2 has it."""
TEXTS = (
    ".figures dd",
    ".figures dt",
    ".advice",
    ".lead",
    ".row-oom .word",
    ".row-ok .word",
    ".grid span",
    ".refused span",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable_in_light_and_dark(browser: Browser, scheme: str) -> None:
    """As the system asks; contrasts of at least 4.5."""
    browser.open("seed", scheme=scheme)
    for selector in TEXTS:
        assert browser.script(CONTRAST, selector) >= 4.5, selector
    paper = browser.script("return getComputedStyle(document.documentElement).backgroundColor")
    assert (paper == "rgb(18, 22, 27)") == (scheme == "dark")
    if scheme == "dark":
        browser.shoot("dark")


def test_the_button_turns_light_into_dark_and_back(browser: Browser) -> None:
    """Whatever the system asks for."""
    browser.open("seed")
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    light = browser.script(paper)
    browser.script('document.getElementById("theme").click()')
    assert browser.script(paper) != light
    assert browser.text("theme") == "Light"
    browser.script('document.getElementById("theme").click()')
    assert browser.script(paper) == light


@pytest.mark.parametrize("name", ["seed", "streamed", "hostile"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, name: str) -> None:
    """390 pixels, without scrolling sideways."""
    browser.open(name, width=390)
    assert browser.script("return document.documentElement.scrollWidth") <= 390
    if name == "seed":
        browser.shoot("phone")


def test_on_paper_it_is_light_and_has_no_buttons(browser: Browser) -> None:
    """Also from a dark screen; the table of all steps is open."""
    browser.open("streamed", scheme="dark")
    browser.command("Emulation.setEmulatedMedia", media="print")
    paper = browser.script("return getComputedStyle(document.documentElement).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert (
        browser.script("return getComputedStyle(document.getElementById('tools')).display")
        == "none"
    )
    printed = browser.command("Page.printToPDF", printBackground=True)
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert browser.script("return document.querySelector('#lanes details').open")


SHOWN = """
const shown = [...document.querySelectorAll(".step")].filter((each) => each.offsetHeight);
return shown.map((each) => each.dataset.step);
"""


def test_another_step_can_be_looked_at(browser: Browser) -> None:
    """One is shown at a time, the one that is furthest from its limit first."""
    browser.open("streamed")
    assert browser.script(SHOWN) == ["5"]
    browser.script(
        """const pick = document.getElementById("pick");
        pick.value = "12";
        pick.dispatchEvent(new Event("change"));"""
    )
    assert browser.script(SHOWN) == ["12"]
