"""The report page: what it escapes and fetches, and how it works in a browser."""

import base64
import hashlib
import json
import re
import shutil

import pytest

from closecall.records import Document, Judgment, Qrels, Query, Run, ScoredDoc
from closecall.slices import Slice
from eval.answers import answers_of_run
from eval.artifact import write_evaluation
from eval.config import EvalConfig
from eval.costs import Size, Times
from eval.evaluation import Asked, Beside, evaluate_answers

HACK = "<script>window.hacked=1</script>"
CONFIG = EvalConfig(measure="MRR", measures=("recall@1",), resamples=999, min_slice_queries=5, min_groups=5)
QUERIES = [f"q{number:02}" for number in range(24)]


def answers(ranks):
    found = {
        q: [ScoredDoc(f"pos-{q}" if at == rank else f"x{at}", -at) for at in range(1, 13)]
        for q, rank in zip(QUERIES, ranks, strict=True)
    }
    return answers_of_run(Run(found), [])


def evaluation(**contenders):
    """24 queries in two slices; the first one's text is a script."""
    texts = {q: f"how to find thing {q}" for q in QUERIES} | {"q00": f'{HACK} & "quotes"'}
    documents = {f"pos-{q}": Document(f"pos-{q}", f"answer of {q} {HACK}") for q in QUERIES}
    documents |= {f"x{at}": Document(f"x{at}", f"something else {at}") for at in range(1, 13)}
    slices = [
        Slice(f"topic={HACK}", frozenset(QUERIES[:10]), "topic"),
        Slice("topic=b", frozenset(QUERIES[10:]), "topic"),
    ]
    asked = Asked(
        {q: Query(q, text) for q, text in texts.items()},
        Qrels(Judgment(q, f"pos-{q}", 1) for q in QUERIES),
        documents,
        slices,
        None,
    )
    names = list(contenders)
    sizes = {name: Size(384, 1536 >> at, 10_000, 10**9, 10**8) for at, name in enumerate(names)}
    times = {name: Times(1.5, 0.5, 4.0 + at, 9.0 + at, 24, None) for at, name in enumerate(names)}
    found = {name: answers(ranks) for name, ranks in contenders.items()}
    return evaluate_answers(found, asked, CONFIG, Beside(sizes=sizes, times=times))


BASE = [2] * 24
TUNED = [1] * 16 + [2] * 3 + [4] * 3 + [12] * 2
FACTS = {
    "models": {"base": {"name": f"m {HACK}", "weights_sha256": "a" * 64}},
    "languages": [
        {"query": asked, "document": held, "n": 9, "values": {"base": 0.9, "tuned": 0.5}}
        for asked in ("de", "en")
        for held in ("de", "en")
    ],
}


def written(folder, found, facts=FACTS):
    content = write_evaluation(folder, found, facts, None, [], "key")
    return (folder / "report.html").read_text(encoding="utf-8"), content


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The folder of a report with four contenders."""
    folder = tmp_path_factory.mktemp("report")
    others = {"bm25": [3] * 24, "hybrid": [1] * 10 + [2] * 14, "small": [2] * 20 + [5] * 4}
    written(folder, evaluation(base=BASE, tuned=TUNED, **others))
    return folder


def test_no_text_from_data_becomes_markup(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1  # our own
    assert HACK not in page
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in page


def test_the_page_names_nothing_to_fetch(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', page) == []
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_only_the_script_of_the_page_may_run(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", page, flags=re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in page or f"script-src 'sha256-{digest}'" in page


def test_a_page_without_failures_and_with_one_contender_is_whole(tmp_path):
    page, content = written(tmp_path, evaluation(base=[2] * 24, tuned=[1] * 24), {"runs": {"base": "a", "tuned": "b"}})
    assert content["failures"]["failures"] == 0
    assert "<h1>Verdict: " in page
    assert "Contenders against" not in page


@pytest.fixture(scope="module")
def browser():
    """Chromium, as the machine has it."""
    api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, report):
    """`opened(**options)`: the page in a fresh context; its faults are in `page.faults`."""
    contexts = []

    def open_page(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.faults = []
        page.on("console", lambda said: page.faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("requestfailed", lambda request: page.faults.append(request.url))
        page.goto((report / "report.html").as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


def deltas(page):
    return [float(cell.get_attribute("data-value")) for cell in page.locator("#queries tbody td[data-value]").all()]


def visible(page, items):
    return page.locator(f"{items}:visible")


def test_the_page_opens_from_disk_without_a_fault_and_a_script_in_a_query_stays_text(opened):
    page = opened()
    assert page.faults == []
    assert page.evaluate("window.hacked") is None
    assert HACK in page.locator("#queries tbody").inner_text()
    assert page.locator("h1").inner_text().lower() == "verdict: adopt"


def test_the_table_of_queries_is_sorted_by_a_click_both_ways(opened):
    page = opened()
    before = deltas(page)
    page.get_by_role("button", name="delta").click()
    assert deltas(page) == sorted(before, reverse=True)
    page.get_by_role("button", name="delta").click()
    assert deltas(page) == sorted(before)
    assert page.locator("#queries th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="query").click()
    texts = page.locator("#queries tbody td:first-child").all_inner_texts()
    assert texts[0] > texts[-1]


def test_queries_are_filtered_by_words_and_by_slice(opened):
    page = opened()
    form = page.locator("form.filter").first
    form.locator("select").select_option("topic=b")
    assert visible(page, "#queries tbody tr").count() == 14
    form.locator("input").fill("THING Q1")
    assert visible(page, "#queries tbody tr").count() == 10  # q10 to q19
    assert form.locator("output").inner_text() == "10 of 24"
    form.locator("input").fill("")
    form.locator("select").select_option("")
    assert visible(page, "#queries tbody tr").count() == 24


def test_failures_are_filtered_by_class(opened, report):
    page = opened()
    failures = [json.loads(line) for line in (report / "failures.jsonl").read_text(encoding="utf-8").splitlines()]
    assert page.locator("article.failure").count() == len(failures) == 5
    form = page.locator("form.filter").nth(1)
    form.locator("select[name=classes]").select_option("low")
    assert visible(page, "article.failure").count() == sum("low" in failure["classes"] for failure in failures) == 2
    form.locator("select[name=classes]").select_option("")
    form.locator("select[name=status]").select_option("regressed")
    assert visible(page, "article.failure").count() == 0


def test_on_a_phone_nothing_but_tables_scrolls_sideways(opened):
    page = opened(viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def contrast(page):
    """Of the body's text on its background, by WCAG 2."""
    found = page.evaluate(
        "(() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; })()"
    )

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    ink, paper = (luminance(colour) for colour in found)
    return (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05), paper


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_text_is_legible_on_light_and_dark_pages(opened, scheme, dark):
    ratio, paper = contrast(opened(color_scheme=scheme))
    assert ratio >= 7
    assert (paper < 0.2) == dark


def test_a_printed_page_has_no_filters_and_all_rows(opened):
    page = opened()
    page.emulate_media(media="print")
    assert visible(page, "form.filter").count() == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
