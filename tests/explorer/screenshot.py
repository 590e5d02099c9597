"""The picture of the explorer in the documentation: the embedded model, and an example that more loops turn wrong.

python -m tests.explorer.screenshot docs/images/explorer.png
"""

import sys

from playwright.sync_api import sync_playwright

from recurtrace import stages
from tests.explorer.conftest import serving
from tests.explorer.test_browser import CHROMIUM, FLAGS


def take(file: str) -> None:
    with serving(stages.explore()) as port, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        with page.expect_response("**/api/turning", timeout=120_000):
            page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_timeout(500)
        turned = page.locator(".chip", has_text="wrong")
        (turned if turned.count() else page.locator(".chip", has_text="hard")).first.click()
        page.wait_for_selector(".headline .said", timeout=120_000)
        page.wait_for_timeout(500)
        page.screenshot(path=file, full_page=True)
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1])
