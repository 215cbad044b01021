"""Headless Chromium (apt: chromium, chromium-driver) that opens a page from disk and tells everything that went wrong, or out, while it did."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S = 90
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--disable-features=Translate,OptimizationHints,MediaRouter",
)  # fmt: skip


@dataclass
class Browser:
    """One browser window; `open` starts a page afresh in it."""

    driver: Any

    def open(self, path: Path, *, width: int = 1400, dark: bool = False) -> None:
        """Open a page in a window this wide, in the light or dark scheme, and wait until it has built itself."""
        self._devtools(
            "Emulation.setEmulatedMedia",
            media="",
            features=[
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                {"name": "prefers-reduced-motion", "value": "reduce"},  # what is scrolled to is there at once
            ],
        )
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.driver.get(path.as_uri())
        self.wait_for("return document.querySelector('footer') !== null", "the page's end")

    def as_printed(self, *, dark: bool = False) -> None:
        """Lay the page out as on paper, from a screen in the light or dark scheme."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._devtools("Emulation.setEmulatedMedia", media="print", features=features)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script."""
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str, what: str) -> Any:
        """The first true value of a script."""
        return WebDriverWait(self.driver, WAIT_S).until(lambda driver: driver.execute_script(script), what)

    def find(self, selector: str) -> WebElement:
        """The first element that matches."""
        element: WebElement = self.driver.find_element(By.CSS_SELECTOR, selector)
        return element

    def all(self, selector: str) -> list[WebElement]:
        """Every element that matches."""
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def draw_everything(self) -> int:
        """Scroll through the page until every chart is drawn; returns their number."""
        for plot in self.all(".plot"):
            self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
            WebDriverWait(self.driver, WAIT_S).until(
                lambda driver, plot=plot: driver.execute_script(
                    "return arguments[0].querySelector('svg.main-svg') !== null", plot
                ),
                "a chart",
            )
        return len(self.all(".plot"))

    def complaints(self) -> list[str]:
        """What the console said since the last call, warnings too."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """A picture of the window, or of the page's top `height` pixels."""
        size = self.run(
            "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(height or size[1], size[1]), "scale": 1}
        shot = self._devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def _devtools(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A fresh browser with its profile in `folder`."""
    options = Options()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        driver.get("about:blank")  # the browser's own first page is none of ours
        opened = Browser(driver)
        opened.complaints(), opened.requests()
        yield opened
    finally:
        driver.quit()
