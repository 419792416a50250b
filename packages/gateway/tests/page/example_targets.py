"""Nine made-up targets: names, prices, skills, and how they do."""

from prefill_router_gateway.page.shapes import TargetHealth

INPUT = (0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 1.25, 3.0, 5.0)
OUTPUT = (0.1, 0.3, 0.8, 1.6, 2.4, 5.0, 10.0, 15.0, 25.0)
SKILL = (-0.6, 0.1, 0.5, 0.9, 1.1, 1.4, 1.8, 2.2, 2.4)
NAMES = (
    *("wren-1b", "wren-8b", "heron-32b", "heron-70b", "kestrel-mini"),
    *("kestrel-code", "kestrel-large", "condor", "condor-thinking"),
)
DOWN = "heron-32b"


def health(i: int) -> TargetHealth:
    down = NAMES[i] == DOWN
    return {
        "target": NAMES[i],
        "provider": ("local", "local", "lab", "lab", "kestrel")[i] if i < 5 else NAMES[i][:6],
        "breaker": "open" if down else "half_open" if i == 6 else "closed",
        "retry_in": 9.2 if down else None,
        "last_failure": "its endpoint at http://127.0.0.1:8000/v1 is overloaded; try again later"
        if down
        else None,
        "requests": (4, 71, 12, 96, 118, 44, 51, 14, 2)[i],
        "failures": (0, 0, 7, 1, 0, 2, 3, 0, 0)[i],
        "first_byte_p50": None if i == 0 else 0.08 * (i + 1),
        "first_byte_p95": None if i == 0 else 0.31 * (i + 1),
        "input_price": INPUT[i],
        "cached_input_price": INPUT[i] / 10 if i > 4 else None,
        "output_price": OUTPUT[i],
        "context_tokens": None if i == 0 else (8, 32, 32, 128, 128, 256, 400, 200, 200)[i] * 1000,
        "accepts": [["tools"], ["tools", "json_schema"], ["tools", "json_schema", "images"]][i // 3]  # type: ignore[typeddict-item]
        if i
        else [],
        "serves": ["chat", "messages"] if i > 6 else ["chat", "completions", "responses"],
    }
