"""The picture of replayed settings: names don't overlap, even of points that are near."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from packages.gateway.tests.receipts.example_receipts import example_receipt
from prefill_router_gateway.receipts import Recorded, replay
from prefill_router_gateway.receipts.replay_figure import picture, rows_of

NEAR_POINTS = {f"target-{k}": (0.5 + 0.004 * k, 0.01 + 0.00003 * k) for k in range(6)}


@pytest.mark.slow
def test_names_of_points_that_are_near_do_not_overlap() -> None:
    names = tuple(NEAR_POINTS)
    choice = {
        "order": names,
        "policy_target": names[0],
        "correctness": {name: p for name, (p, _) in NEAR_POINTS.items()},
        "estimated_cost": {name: cost for name, (_, cost) in NEAR_POINTS.items()},
    }
    result = replay(Recorded.of([example_receipt(1, choice=choice)]), [0.0, 0.001, 0.005, 0.5, 1.0])
    figure = picture(rows_of(result), title="six that are alike")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = figure.axes[0].texts
    labels = ", ".join(text.get_text() for text in texts).split(", ")
    assert sorted(labels) == sorted([*names, *(setting.name for setting in result.settings[1:])])
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    frame = figure.axes[0].get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_a_target_that_no_request_knows_is_left_out() -> None:
    result = replay(Recorded.of([example_receipt(1)]), [0.5])
    rows = rows_of(result)
    rows.append({"kind": "target", "name": "absent", "accuracy": float("nan"), "usd_per_1000": 1.0})
    texts = picture(rows, title="one unknown").axes[0].texts
    assert "large" in texts[0].get_text() + texts[1].get_text() + texts[2].get_text()
    assert not any("absent" in text.get_text() for text in texts)
