"""The page in a real browser: Debian's chromium, driven by Playwright."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from playwright.sync_api import expect, sync_playwright

from recurtrace import stages
from recurtrace.explorer.page import whole_page
from tests.conftest import byte_tokenizer, tiny_looped
from tests.explorer.conftest import LOOPS, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
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
        gate = sum(layer.gate[3] for layer in made_trace.loops[3].layers) / 3
        expect(page.locator(".where")).to_contain_text("token 4 of 27, after loop 4 · gate")
        assert float(page.inner_text(".where").split()[-1]) == pytest.approx(gate, rel=0.01)
        page.select_option(".metric", "entropy")
        entropy = made_trace.loops[3].decoded.entropy[3]
        expect(page.locator(".where")).to_contain_text("· entropy")
        assert float(page.inner_text(".where").split()[-1]) == pytest.approx(entropy, rel=0.01)
        page.focus(".field")
        for key, place in {
            "End": "token 27 of 27, after loop 4",
            "Home": "token 1 of 27, after loop 4",
            "Control+End": f"token 27 of 27, after loop {LOOPS}",
            "Control+Home": "token 1 of 27, after loop 1",
        }.items():
            page.keyboard.press(key)
            expect(page.locator(".where")).to_contain_text(place)

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
        page.keyboard.press("End")
        expect(page.locator(".handle")).to_have_attribute("aria-valuenow", "1.00")
        expect(page.locator(".headline .depth")).to_have_text("1")
        page.keyboard.press("Home")
        expect(page.locator(".handle")).to_have_attribute("aria-valuenow", "0.00")
        page.keyboard.press("PageUp")
        page.select_option(".signal", "confidence")
        expect(page.locator(".threshold-label")).to_have_text("stop above 0.90")
        assert len(tracing.ended) == asked

        # the memory's attention: three layers of four heads
        expect(page.locator(".attention .small-title")).to_have_count(12)
        page.select_option(".whose", "token")

        # a second trace beside the first, with the memory switched off; the first keeps its threshold
        page.focus(".handle")
        page.keyboard.press("PageDown")
        page.select_option("#off", "3")
        page.click("#compare")
        expect(page.locator(".panel")).to_have_count(2)
        expect(page.locator(".panel >> nth=0 >> .handle")).to_have_attribute("aria-valuenow", "0.80")
        expect(page.locator(".panel >> nth=1 >> .tags")).to_contain_text("memory off from loop 3")
        page.click(".panel >> nth=1 >> .tags button")
        expect(page.locator(".panel")).to_have_count(1)
        expect(page.locator(".handle")).to_have_attribute("aria-valuenow", "0.80")
        expect(page.locator(".tags button")).to_be_hidden()


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
        expect(page.locator("#message")).to_be_hidden()  # it was about the question before

        page.fill("#prompt", "Key?")
        page.fill("#loops", "16")
        page.select_option("#off", "4")
        page.click("#compare")
        expect(page.locator(".panel")).to_have_count(2)
        assert json.loads(saved(page, "JSON", tmp_path))["loops"][0] == made_trace.as_json()["loops"][0]
        drawing = saved(page, "SVG", tmp_path).decode()
        assert drawing.startswith("<svg")
        assert "var(" not in drawing  # its colours are its own
        assert drawing.count("<rect") > 2 * len(made_trace.tokens) * LOOPS
        for said in (
            "Jar? &lt;b&gt;",
            "Key?",
            "memory off from loop 4",
            "half turns from the loop before",
            "2 loops back",
        ):
            assert said in drawing
        assert saved(page, "PNG", tmp_path).startswith(b"\x89PNG")
        saved(page, "page", tmp_path)
    page.goto(f"file://{tmp_path / 'trace.html'}")
    expect(page.locator(".prompt")).to_have_text(["Jar? <b>", "Key?"])
    page.click(".panel >> nth=0 >> .tags button")
    saved(page, "page", tmp_path)
    page.goto(f"file://{tmp_path / 'trace.html'}")
    expect(page.locator(".prompt")).to_have_text(["Key?"])


def saved(page, kind, folder):
    with page.expect_download() as download:
        page.click(f'[data-save="{kind}"] >> nth=0')
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file.read_bytes()


def test_two_models_are_compared_though_they_loop_different_layers(page, tmp_path):
    """Memory against plain looping, of fewer layers: nothing of one is looked for in the other."""
    tokenizer = byte_tokenizer()
    for name, fields in {"memory": {}, "plain": {"loop_memory": False, "loop_num_layers": 2}}.items():
        looped = tiny_looped(vocab_size=len(tokenizer), **fields)
        looped.save_pretrained(tmp_path / name, merge_base=True)
        tokenizer.save_pretrained(tmp_path / name)
    models = [str(tmp_path / name) for name in ("memory", "plain")]
    with serving(stages.explore(models=models)) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("#prompt", "Where is the ball?")
        page.fill("#loops", "4")
        page.click("#trace")
        expect(page.locator(".panel")).to_have_count(1)
        page.select_option("#off", "3")
        page.select_option("#model", models[1])
        expect(page.locator("#off")).to_be_disabled()
        page.click("#compare")
        expect(page.locator(".panel")).to_have_count(2)
        first, second = page.locator(".panel").all()
        expect(second.locator(".tags")).to_contain_text("no memory")
        for metric in ("change", "gate", "memory", "norm"):
            first.locator(".metric").select_option(metric)
            for layer in ("", "0", "2"):
                first.locator(".layer").select_option(layer)
                whole = second.locator(".field .cell.empty")
                plain = metric in ("change", "norm") and layer != "2"
                expect(whole).to_have_count(0 if plain else 4 * len("Where is the ball?"))
        expect(second.locator(".scale")).to_have_text("This model loops fewer layers.")
        expect(second.locator(".attention")).to_have_text("No memory was read in this trace.")
        assert "This model loops fewer layers." in saved(page, "SVG", tmp_path).decode()
        first.locator(".tags button").click()
        expect(page.locator(".layer")).to_have_value("")  # the layer that is no longer there is not chosen any more


def test_a_memory_of_one_loop_and_a_single_loop_are_said_not_drawn(page, tmp_path, made_trace):
    one_back = [
        replace(loop, layers=[replace(layer, attention=[[[1.0]] * 27] * 4) for layer in loop.layers])
        for loop in made_trace.loops[1:]
    ]
    short = replace(made_trace, memory_window=1, loops=[made_trace.loops[0], *one_back])
    single = replace(made_trace, memory_window=1, loops=made_trace.loops[:1])
    for trace, said in ((short, "every head looks exactly one loop back"), (single, "No memory was read")):
        (tmp_path / "page.html").write_text(whole_page([trace]), encoding="utf-8")
        page.goto(f"file://{tmp_path / 'page.html'}")
        expect(page.locator(".attention")).to_contain_text(said)
        expect(page.locator(".attention svg")).to_have_count(0)
        expect(page.locator(".whose")).to_be_hidden()
        expect(page.locator(".tags")).to_contain_text("memory of 1 loop")
    expect(page.locator(".headline")).not_to_contain_text("at every depth")


def test_on_a_phone_the_result_comes_into_view(page, app):
    page.set_viewport_size({"width": 390, "height": 700})
    with serving(app) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.click(".chip >> nth=0")
        expect(page.locator(".headline .said")).to_be_in_viewport()
        for control in ("#prompt", "#loops", "#off"):  # a smaller one would be zoomed into
            expect(page.locator(control)).to_have_css("font-size", "16px")
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_static_page_needs_no_server_and_fits_a_phone(page, made_trace, tmp_path):
    (tmp_path / "page.html").write_text(whole_page([made_trace, made_trace]), encoding="utf-8")
    page.set_viewport_size({"width": 390, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(f"file://{tmp_path / 'page.html'}")
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator("#ask")).to_be_hidden()
    tops = [one.bounding_box()["y"] for name in ("halting", "answers") for one in page.locator(f".{name}").all()]
    assert tops == sorted(tops)  # section by section, not trace by trace
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != before
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator(".panel >> nth=0 >> .halting svg")).not_to_have_attribute("width", "326")
    assert page.evaluate("document.documentElement.scrollWidth") == 1280
