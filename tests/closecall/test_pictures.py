import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from closecall.pictures import COLOURS, curve_picture, histogram_picture

SVG = "{http://www.w3.org/2000/svg}"
EDGES = [number / 10 for number in range(11)]
LEFT, INSIDE = 0.75 * 72, 4 * 72
"""Points: where the axes begin and how wide they are."""


def texts(picture):
    """What a reader can read, in the order of the file."""
    return [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def line(picture, colour):
    """The corners of the first line of a colour."""
    for path in ElementTree.fromstring(picture).iter(f"{SVG}path"):
        if f"stroke: {colour.lower()}" in path.get("style", ""):
            return [tuple(map(float, corner)) for corner in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path.get("d"))]
    return []


@pytest.fixture(scope="module")
def histogram():
    counts = {"positives": [0, 0, 0, 1, 3, 0, 0, 0, 0, 0], "negatives": [0, 0, 8, 0, 0, 0, 0, 0, 0, 0]}
    return histogram_picture(EDGES, counts, "Scores", "cosine")


@pytest.fixture(scope="module")
def curve():
    return curve_picture([0.0, 0.25, 0.5], {"filled": [1, 0.5, 0], "free": [1, 1, 1]}, "Margins", "margin", 0.15)


def test_a_picture_names_its_curves_its_axes_and_itself(histogram, curve):
    assert {"positives", "negatives", "cosine", "share", "Scores"} <= set(texts(histogram))
    assert {"filled", "free", "margin", "share", "Margins"} <= set(texts(curve))


def test_a_picture_is_an_image_with_a_name_for_who_cannot_see_it():
    picture = curve_picture([0, 1], {"a": [0, 1]}, 'a < "b" & c', "x")
    root = ElementTree.fromstring(picture)
    assert (root.get("role"), root.get("aria-label")) == ("img", 'a < "b" & c')
    assert (root[0].tag, root[0].text) == (f"{SVG}title", 'a < "b" & c')


def test_a_histogram_shows_shares_from_the_first_to_the_last_bin_with_data(histogram):
    """Bins 2, 3 and 4 hold data: a third of the width each. Of the positives 1/4 are in bin 3 and 3/4 in bin 4."""
    corners = line(histogram, COLOURS[0])
    assert sorted({x for x, _ in corners}) == pytest.approx([LEFT + INSIDE * third / 3 for third in range(4)])
    bottom, quarter, three_quarters = sorted({y for _, y in corners}, reverse=True)
    assert bottom - three_quarters == pytest.approx(3 * (bottom - quarter))
    whole = min(y for _, y in line(histogram, COLOURS[1]))  # the negatives are all in one bin
    assert bottom - whole == pytest.approx(4 * (bottom - quarter))


def test_a_histogram_of_many_bins_joins_neighbours():
    """200 bins joined by 5 are 40, which is at most 60; joined by 2 they would be 100."""
    picture = histogram_picture([n / 100 - 1 for n in range(201)], {"a": [1] * 200}, "t", "x")
    assert len({x for x, _ in line(picture, COLOURS[0])}) == 40 + 1


def test_bins_are_joined_to_the_last_one_even_where_they_do_not_come_out_even():
    """61 bins joined by 2 are 30 and a half one with one count."""
    picture = histogram_picture(list(range(62)), {"a": [1] * 61}, "t", "x")
    corners = line(picture, COLOURS[0])
    assert len({x for x, _ in corners}) == 31 + 1
    bottom, one, two = sorted({y for _, y in corners}, reverse=True)
    assert bottom - two == pytest.approx(2 * (bottom - one))


def test_an_empty_histogram_is_left_out_and_nothing_is_drawn_of_nothing():
    some, none = [1] + [0] * 9, [0] * 10
    assert "negatives" not in texts(histogram_picture(EDGES, {"positives": some, "negatives": none}, "t", "x"))
    assert histogram_picture(EDGES, {"positives": none}, "t", "x") == ""


def test_a_curve_passes_through_its_points(curve):
    (x1, y1), (x2, y2), (x3, y3) = line(curve, COLOURS[0])
    assert (x1, x2, x3) == pytest.approx((LEFT, LEFT + INSIDE / 2, LEFT + INSIDE))
    assert y2 - y1 == pytest.approx(y3 - y2)


def test_the_marker_stands_at_its_value_and_says_it(curve):
    """0.15 is three tenths of the way from 0 to 0.5, and no line of the grid."""
    lines = re.findall(r'd="M ([\d.]+) [\d.]+ \nL ([\d.]+) [\d.]+ \n" clip-path[^>]*stroke: currentColor', curve)
    assert (f"{LEFT + INSIDE * 3 / 10:g}",) * 2 in lines
    assert "0.15" in texts(curve)


@pytest.mark.parametrize("marker", [None, 0.75])
def test_a_marker_beyond_the_curves_is_not_drawn(marker, curve):
    without = curve_picture([0.0, 0.25, 0.5], {"filled": [1, 0.5, 0], "free": [1, 1, 1]}, "Margins", "margin", marker)
    assert len(texts(without)) == len(texts(curve)) - 1


def test_eight_curves_differ_in_colour_or_dashes():
    curves = {f"from rank {number}": [1, number / 10] for number in range(8)}
    picture = curve_picture([0, 1], curves, "t", "x")
    styles = re.findall(r"fill: none; (stroke-dasharray[^;]*; )?.*?stroke: (#\w+)", picture)
    assert len(set(styles)) == 8


def test_text_has_the_colour_of_the_page_and_the_ground_shows_through(histogram, curve):
    for picture in (histogram, curve):
        styles = [element.get("style") for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
        assert all("fill: currentColor" in style for style in styles)
        assert "#ffffff" not in picture
        assert "#000000" not in picture


def test_a_picture_loads_nothing_and_styles_nothing_outside_itself(histogram, curve):
    for picture in (histogram, curve):
        assert set(re.findall(r"\w+://[^\"'\s]*", picture)) == {"http://www.w3.org/2000/svg"}
        assert "<style" not in picture
        assert picture.startswith("<svg ")


def test_ids_of_two_pictures_do_not_meet(histogram, curve):
    first, second = (set(re.findall(r'\bid="([^"]*)"', picture)) for picture in (histogram, curve))
    assert first
    assert not first & second
    for picture, ids in ((histogram, first), (curve, second)):
        assert set(re.findall(r'(?:url\(|href=")#(\w+)', picture)) <= ids


def test_the_same_numbers_give_the_same_bytes_and_leave_matplotlib_as_it_was(curve):
    import matplotlib

    before = dict(matplotlib.rcParams)
    again = curve_picture([0.0, 0.25, 0.5], {"filled": [1, 0.5, 0], "free": [1, 1, 1]}, "Margins", "margin", 0.15)
    assert again == curve
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_loaded_by_drawing_alone_and_pyplot_not_at_all():
    code = """
import sys, closecall.pictures
before = "matplotlib" in sys.modules
closecall.pictures.curve_picture([0, 1], {"a": [0, 1]}, "t", "x")
print(before, "matplotlib" in sys.modules, "matplotlib.pyplot" in sys.modules)
"""
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True", "False"]
