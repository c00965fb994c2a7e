"""The checks for those who cannot see a page see what is wrong with one."""

import pytest
from playwright.async_api import Page

from tests.browser.accessibility import faults
from tests.browser.keyboard import Keyboard

GOOD = """<!doctype html><html lang="en"><title>A page</title><style>body { background: white; color: black }</style>
<main><h1>One</h1><h2>Two</h2><label>Name <input></label><button>Go</button><img alt="" src="data:,">
<table><caption>All</caption><thead><tr><th scope="col">A</th></tr></thead>
<tbody><tr><th scope="row">1</th></tr></tbody></table></main>"""
WRONG = {
    "no language": (' lang="en"', ""),
    "no title": ("A page", ""),
    "0 of main": ("main>", "div>"),
    "2 of h1": ("h2", "h1"),
    "after h1 comes h3": ("h2", "h3"),
    "<input class=": ("<label>Name <input></label>", "<input>"),
    "<button": (">Go<", "><"),
    "a picture without words": ('alt="" ', ""),
    "has no caption": ("<caption>All</caption>", ""),
    "a head of a column without scope": (' scope="col"', ""),
    "a head of a row without scope": (' scope="row"', ""),
    "the id x is there twice": ("<h1>One</h1><h2>", "<h1 id=x>One</h1><h2 id=x>"),
    "names nobody, which is not there": ("<input>", "<input aria-describedby=nobody>"),
    "jumps the queue of Tab": ("<input>", "<input tabindex=3>"),
    "is neither hidden nor told": ("<h2>", "<svg></svg><h2>"),
    "is hidden and takes the focus": ("<h2>", "<div aria-hidden=true><a href=/>there</a></div><h2>"),
    "contrast 4.48": ("<h2>", "<p style='color: #777'>grey</p><h2>"),
    "contrast 1.00": ("<h2>", "<p style='color: rgb(0 0 0 / 0%)'>air</p><h2>"),
    "contrast 4.00": ("<h2>", "<div style='background: rgb(0 0 0 / 50%)'><p style='color: #fff'>on grey</p></div><h2>"),
}


@pytest.mark.parametrize("fault", WRONG)
async def test_each_fault_of_a_page_is_found(fault: str, page: Page) -> None:
    await page.set_content(GOOD)
    assert await faults(page) == []
    good, bad = WRONG[fault]
    assert good in GOOD
    await page.set_content(GOOD.replace(good, bad))
    (found,) = await faults(page)
    assert fault in found


async def test_what_has_the_focus_and_does_not_show_it_is_found(page: Page) -> None:
    await page.set_content("<style>button:focus { outline: none }</style><button>Go</button>")
    with pytest.raises(AssertionError, match="does not show it"):
        await Keyboard(page).to("Go")


async def test_what_no_key_leads_to_is_found(page: Page) -> None:
    await page.set_content("<button>Go</button><div onclick='1'>Stop</div>")
    with pytest.raises(AssertionError, match="no way by keyboard to 'Stop'"):
        await Keyboard(page).to("Stop")
