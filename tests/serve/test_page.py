"""The page in a real browser, by keyboard alone. Skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.live import Live, SlowToy, live, tool_session

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


def page_of(browser: Any, served: Live, complaints: list[str], width: int = 900) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 700})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(served.url)
    page.locator("#server:has-text('places')").wait_for()
    return page


def test_a_question_is_asked_and_answered_twice_alike(browser: Any) -> None:
    complaints: list[str] = []
    with live(tool_session()) as served:
        page = page_of(browser, served, complaints)
        page.locator("#tokens").evaluate("field => { field.value = '600' }")
        page.locator("#compare").check()
        page.locator("#message").fill("once upon")
        page.keyboard.press("Enter")
        page.locator("#status:has-text('done')").wait_for()
        assert page.locator("article").count() == 3
        answers = page.locator("article")
        assert "the same text" in answers.nth(2).inner_text()
        said = served.chat("once upon", temperature=0, seed=0, max_tokens=600).json()
        text = said["choices"][0]["message"]["content"]
        assert answers.nth(1).locator("p").first.text_content() == text
        assert page.locator("#plain").inner_text() != "–"
        page.close()
    assert complaints == []


def test_escape_stops_and_the_slot_is_free(browser: Any) -> None:
    complaints: list[str] = []
    with live(tool_session(SlowToy, "plain")) as served:
        page = page_of(browser, served, complaints)
        page.locator("#message").fill("once upon")
        page.keyboard.press("Enter")
        page.locator("article >> nth=1 >> p >> span").first.wait_for()
        page.keyboard.press("Escape")
        page.locator("#status:has-text('stopped')").wait_for()
        page.locator("#server:has-text('0 of 16')").wait_for()
        page.close()
    assert complaints == []


@pytest.mark.parametrize("width", [320, 1200])
def test_everything_can_be_reached_at_any_width(browser: Any, served: Live, width: int) -> None:
    page = page_of(browser, served, [], width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    reached = set()
    for _ in range(12):
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        page.keyboard.press("Tab")
    assert {"message", "send", "clear", "compare", "SUMMARY"} <= reached
    page.close()


def test_errors_are_shown_as_text(browser: Any) -> None:
    with live(tool_session(), max_tokens=5) as served:
        page = page_of(browser, served, [])
        page.locator("#message").fill("<b>bold</b>")
        page.keyboard.press("Enter")
        page.locator(".error:has-text('at most 5')").wait_for()
        assert page.locator("article b").count() == 0
        page.close()
