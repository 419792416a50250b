import math

from prefill_router.cli.headline import PlotMark, draw


def test_corners_are_drawn_in_the_corners() -> None:
    text = draw(
        [PlotMark(1, 0.2, "a"), PlotMark(3, 0.9, "b")],
        x_label="$",
        y_label="acc",
        width=11,
        height=4,
    )
    lines = text.splitlines()
    assert lines[1] == "  0.900 |          b"
    assert lines[4] == "  0.200 |a"
    assert lines[6].split() == ["1", "3"]


def test_later_marks_cover_earlier_ones() -> None:
    text = draw(
        [PlotMark(1, 1, "a"), PlotMark(1, 1, "b")], x_label="", y_label="", width=5, height=3
    )
    assert "b" in text
    assert "a" not in text


def test_logarithmic_axis_puts_the_geometric_mean_in_the_middle() -> None:
    marks = [PlotMark(1, 0, "a"), PlotMark(10, 0.5, "m"), PlotMark(100, 1, "b")]
    text = draw(marks, x_label="", y_label="", width=11, height=3, log_x=True)
    assert text.splitlines()[2] == " " * 7 + " |     m"


def test_points_that_are_not_finite_are_left_out() -> None:
    assert draw([PlotMark(math.nan, 1, "a")], x_label="", y_label="").startswith("(nothing to draw")
