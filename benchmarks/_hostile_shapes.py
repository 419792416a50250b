"""Shapes of hostile texts, each of any length in characters."""

from collections.abc import Callable

Shape = Callable[[int], str]
_DEEP = 900  # levels; more than some walks can take, and less than the standard library's decoder

_UNITS = (
    "[", "{", "(", "}", "<", '{"a":', "[{", "{[", "{{}", "[[]", '{"a":[', "- ", "? ", "1",
    "9,", "111,", "1,111,", ".", "1.", "-", "+", "1/", "1e", "1*10^", "$", "%", "#", " ",
    "\t", "\n", "\r", " \n", "a ", "a", "A ", "Z", "\\", '"', "'", '\\"', "`", "```",
    "```\n", "answer: ", "answer:", "answer is ", "Answer: \n", "#### ", "\\boxed{",
    "\\boxed{}", "\\frac{1}", "\\frac{1}{", "\\", "$$", "correct: yes\n", "correct", ":",
    '{"correct": ', "data: ", "data: {}\n", "data: {\n", "data:\n\n", ": x\n", "\r\n",
    '"usage":', '"tool_calls"', '"content":"', '"id" ', '"type":"a', "event: x\n", "Bearer ",
    "sk-", "sk-aaaaaaaaaaaaaaaa", "<think>", "</think>", "session ", "session", "max_tokens",
    "model", "router-", "a-", "*a ", "&a ", "!!x ", "a: ", "a: b\n", "<<: ", "\x00", "\x85",
    "\ud800", "\u0300", "\u0663", "\ufdfa", "\u2212", "\U0001f600", "\u0130", "\xdf", ",",
    '","', '"",', "a,b\n", "|", "def ", "function ", "1:", "0x", "0b", "_", "~", "{,}",
)  # fmt: skip


def _over(unit: str, *, before: str = "", after: str = "") -> Shape:
    """A unit, over and over."""
    return lambda n: before + unit * (n // len(unit)) + after


def _each(unit: str, *, before: str = "", after: str = "", join: str = ",") -> Shape:
    """A unit with a number in it, a different one each time."""

    def make(n: int) -> str:
        count = n // (len(unit) + len(join) + 4)
        return before + join.join(unit.replace("#", str(k)) for k in range(count)) + after

    return make


def _nest(levels: int, opened: str, closed: str) -> Shape:
    return lambda _: opened * levels + "1" + closed * levels


def _rows(head: str, line: str) -> Shape:
    return lambda n: head + "".join(line.replace("#", str(k)) for k in range(n // len(line)))


def _records(keys: int) -> Shape:
    """Lines of JSON, each of which has keys of its own."""

    def make(n: int) -> str:
        lines, size, k = [], 0, 0
        while size < n:
            fields = ",".join(f'"k{k + i}":1' for i in range(keys))
            lines.append(f'{{"prompt":"p{k}",{fields}}}')
            size, k = size + len(lines[-1]) + 1, k + keys
        return "\n".join(lines)

    return make


SHAPES: dict[str, Shape] = {
    **{f"{unit!r} over and over": _over(unit) for unit in _UNITS},
    "spaces between marks": _over(" ", before="answer:", after="."),
    "a number that ends in a letter": _over("1", after="x"),
    "a fraction that ends in a letter": _over("1", before="1.", after="x"),
    "a list that ends in a letter": _over("1,111", after="x"),
    "a long power": _over("9", before="1e"),
    "a long decimal": _over("3", before="0."),
    "a text": _over("a", before='"', after='"'),
    "escapes in a text": _over("\\u00e9", before='"', after='"'),
    "surrogates in a text": _over("\\ud83d", before='"', after='"'),
    "numbers in a list": _over("1,", before="[", after="1]"),
    "long numbers in a list": _over("1" * 4000 + ",", before="[", after="1]"),
    "lists in a list": _over("[],", before="[", after="1]"),
    "objects in a list": _over('{"a":1},', before="[", after="{}]"),
    "parts in a list": _over('{"type":"text","text":"a"},', before="[", after="{}]"),
    "keys": _each('"k#":1', before="{", after="}"),
    "keys of keys": _each('"k#":{"a":1}', before="{", after="}"),
    "one key": _over('"a":1,', before="{", after='"a":1}'),
    "a merged key": _over('"__proto__":{"a":1},', before="{", after='"a":1}'),
    "columns": _each("c#", after="\n1"),
    "columns of a row": _each("c#", before="prompt,target,correct\n"),
    "rows": _rows("prompt,target,correct\n", "p#,t,1\n"),
    "targets": _rows("prompt,target,correct\n", "p#,t#,1\n"),
    "prices": _rows(
        "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n", "t#,1,2\n"
    ),
    "records": _rows("", '{"prompt":"p#","target":"t","correct":1}\n'),
    "targets of records": _rows("", '{"prompt":"p#","target":"t#","correct":1}\n'),
    "keys of records": _records(10),
    "a cell": _over("x", before="prompt,target,correct\n", after=",t,1\n"),
    "a cell in quotes": _over('""', before='prompt,target,correct\n"', after='",t,1\n'),
    "a label": _over("1", before="prompt,target,correct\np,t,", after="x\n"),
    "a line of a table": _over("p,", before="prompt,target,correct\n"),
    "a mapping": _each("k#: 1", join="\n"),
    "a mapping of numbers": lambda n: "\n".join(f"{k * (2**61 - 1)}: 1" for k in range(1, n // 25)),
    "targets of a pool": _each("- {name: t#}", before="targets:\n", join="\n"),
    "keys of a pool": _each("k#: 1", before="targets:\n- name: a\n  ", join="\n  "),
    "keys of clients": _each("- {name: k#, sha256: a}", before="keys:\n", join="\n"),
    "anchors": _each("- &a# 1", join="\n"),
    "aliases": _over("- *a\n", before="- &a 1\n"),
    "merges": _over("{a: 1}, ", before="<<: [", after="{}]"),
    "merges in merges": _nest(200, "<<: {", "}"),
    "flows": _nest(200, "[", "]"),
    "lists, nested": _nest(_DEEP, "[", "]"),
    "objects, nested": _nest(_DEEP, '{"a":', "}"),
    "choices, nested": _nest(_DEEP, '{"choices":[', "]}"),
    "errors, nested": lambda _: '{"error":{"type":' + "[" * _DEEP + "]" * _DEEP + "}}",
    "verdicts, nested": lambda _: '{"correct":"yes","extracted":' + "[" * 985 + "]" * 985 + "}",
    "parts, nested": _nest(400, '{"type":"tool_result","content":[', "]}"),
    "contents, nested": _nest(400, '[{"type":"text","content":', "}]"),
}
