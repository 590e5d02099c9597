"""The page in a real browser: Debian's chromium, driven by Playwright."""

import json
import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from recurtrace.explorer.page import whole_page
from tests.explorer.conftest import LOOPS, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt-get install chromium)")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """Fails if the page logs an error, or asks for anything that is not its own."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda asked: problems.append(asked.url) if not is_local(asked.url) else None)
    yield page
    page.close()
    assert [one for one in problems if "422" not in one] == []


def is_local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file:", "blob:", "data:"))


def test_a_question_is_typed_watched_and_compared(page, app, tracing, made_trace):
    with serving(app) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#hello")).to_be_visible()
        tracing.gate.clear()  # held after the first loop
        page.fill("#prompt", "Where is the ball?")
        page.click("#trace")
        expect(page.locator("#live .cards button")).to_have_count(1)
        expect(page.locator("#status")).to_contain_text(f"loop 1 of 16: {made_trace.loops[0].answer}")
        page.click("#cancel")
        expect(page.locator("#status")).to_have_text("cancelled")
        tracing.gate.set()
        page.click("#trace")

        # the grid
        cells = page.locator(".field .cell")
        expect(cells).to_have_count(len(made_trace.tokens) * LOOPS)
        page.select_option(".metric", "gate")
        expect(page.locator(".field .cell.empty")).to_have_count(len(made_trace.tokens))  # no memory in the first loop
        page.hover('.field .cell[data-p="2"][data-t="3"]')
        gate = sum(layer.gate[2] for layer in made_trace.loops[2].layers) / 3
        shown = re.search(r"“l” · loop 3 · gate ([\d.]+)", page.inner_text("#tip"))
        assert float(shown[1]) == pytest.approx(gate, rel=0.01)
        page.click('.field .cell[data-p="2"][data-t="3"]')
        expect(page.locator(".where")).to_contain_text("token 3 of 27, after loop 3")
        page.focus(".field")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        expect(page.locator(".where")).to_contain_text("token 4 of 27, after loop 4")

        # the threshold, by mouse and by keys; no new trace is asked for
        asked = len(tracing.ended)
        expect(page.locator(".headline .depth")).to_have_text("3")
        expect(page.locator(".headline .said")).to_contain_text("Box")
        page.locator(".halting svg").scroll_into_view_if_needed()
        knob = page.locator(".knob").bounding_box()
        page.mouse.move(knob["x"] + 8, knob["y"] + 8)
        page.mouse.down()
        page.mouse.move(knob["x"] + 8, knob["y"] + 60, steps=4)
        page.mouse.up()
        expect(page.locator(".headline .said")).to_contain_text("Sack")
        assert int(page.inner_text(".headline .depth")) > 3
        for _ in range(9):
            page.keyboard.press("PageUp")
        expect(page.locator(".handle")).to_have_attribute("aria-valuenow", "1.00")
        expect(page.locator(".headline .depth")).to_have_text("1")
        page.select_option(".signal", "confidence")
        expect(page.locator(".threshold-label")).to_have_text("stop above 0.90")
        assert len(tracing.ended) == asked

        # the memory's attention: three layers of four heads
        expect(page.locator(".attention .small-title")).to_have_count(12)
        page.select_option(".whose", "token")

        # a second trace beside the first, with the memory switched off
        page.select_option("#off", "3")
        page.click("#compare")
        expect(page.locator(".panel")).to_have_count(2)
        expect(page.locator(".panel >> nth=1 >> .tags")).to_contain_text("memory off from loop 3")
        page.click(".panel >> nth=0 >> .tags button")
        expect(page.locator(".panel")).to_have_count(1)


def test_an_example_is_clicked_an_error_shown_and_views_saved(page, app, tmp_path, made_trace):
    with serving(app) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator(".chip")).to_have_text(["easy", "hard", "more loops turn it wrong"])
        page.click(".chip >> nth=1")
        expect(page.locator(".prompt")).to_have_text("Jar? <b>")  # text, not markup
        assert page.input_value("#reference") == "Sack"

        page.fill("#prompt", "x" * 20_001)
        page.click("#trace")
        expect(page.locator("#message")).to_have_text("prompt: string should have at most 20000 characters.")
        page.fill("#loops", "99")
        page.click("#trace")
        assert page.evaluate("!document.getElementById('loops').validity.valid")

        def saved(kind):
            with page.expect_download() as download:
                page.click(f'[data-save="{kind}"]')
            download.value.save_as(tmp_path / download.value.suggested_filename)
            return (tmp_path / download.value.suggested_filename).read_bytes()

        assert json.loads(saved("JSON"))["loops"][0] == made_trace.as_json()["loops"][0]
        drawing = saved("SVG").decode()
        assert drawing.startswith("<svg")
        assert "var(" not in drawing  # its colours are its own
        assert drawing.count("<rect") > len(made_trace.tokens) * LOOPS
        assert saved("PNG").startswith(b"\x89PNG")
        saved("page")
    page.goto(f"file://{tmp_path / 'trace.html'}")
    expect(page.locator(".prompt")).to_have_text("Jar? <b>")


def test_a_static_page_needs_no_server_and_fits_a_phone(page, made_trace, tmp_path):
    (tmp_path / "page.html").write_text(whole_page([made_trace, made_trace]), encoding="utf-8")
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(f"file://{tmp_path / 'page.html'}")
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator("#ask")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator(".panel >> nth=0 >> .halting svg")).not_to_have_attribute("width", "326")
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
