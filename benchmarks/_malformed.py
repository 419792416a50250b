"""Malformed requests, seeded: wrong bodies, wrong heads, wrong framing, and good ones among them.

Only the standard library is needed. Each text holds `PROMPT`, and each request has a key: neither
may ever come back or be kept.
"""

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

PROMPT = "pineapple-of-the-prompt"
KEY = "pr-the-client-key-of-these-tests"
WRONG_KEY = "pr-a-key-that-nobody-knows"
_TURNS = [
    {"role": "system", "content": f"Be short. {PROMPT}"},
    {"role": "user", "content": [{"type": "text", "text": f"Why? {PROMPT}"}]},
]
_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": PROMPT, "parameters": {"type": "object"}},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "auto",
        "messages": _TURNS,
        "temperature": 0.5,
        "max_tokens": 9,
        "stream": False,
        "stream_options": None,
        "tools": [_TOOL],
        "metadata": {"session_id": "s1"},
    },
    "/v1/completions": {"model": "target-0", "prompt": f"Once {PROMPT}", "max_tokens": 5},
    "/v1/responses": {
        "model": "auto",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": PROMPT}]}],
        "instructions": PROMPT,
        "previous_response_id": None,
        "max_output_tokens": 7,
    },
    "/v1/embeddings": {"model": "target-0", "input": [PROMPT, PROMPT]},
    "/v1/messages": {
        "model": "auto",
        "max_tokens": 9,
        "system": [{"type": "text", "text": PROMPT}],
        "messages": [{"role": "user", "content": PROMPT}],
    },
    "/v1/messages/count_tokens": {"model": "auto", "messages": _TURNS, "system": PROMPT},
    "/v1/route": {"model": "prefill-router:0.7", "messages": _TURNS},
    "/v1/feedback": {"id": "pr_00", "score": 0.5, "source": "user"},
    "/page/api/lam": {"lam": 0.5},
}
"""A good body of each path."""

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.1, -0.0, 1e308),
    *("", " ", "\0", "\ud800", "\U0001f600", "a" * 3000, "nan", "é\u202e", "\ufeff", "\x85\u2028"),
    *([], [[]], [None], {}, {"": {}}, {"a": [{"b": {}}]}, [1, "a", None], {"type": "text"}),
    *([{"role": "user"}], [{"type": "image_url"}], {"role": 1}, [0.5] * 300),
)
_ROUTES = tuple(BODIES)
_HEAD_VALUES = (
    *(
        b"",
        b"-1",
        b"nan",
        b"inf",
        b"0.5",
        b"1e999",
        b"\xff\xfe",
        b"a,b,c",
        b"target-0",
        b"target-9",
    ),
    *(b"," * 50, b"x" * 5000, b"\t", b"0.5, 0.6", b"conversation", "é".encode(), b'"', b"{}"),
)
_WISHES = (
    *(b"x-prefill-router-lam", b"x-prefill-router-max-cost", b"x-prefill-router-allow"),
    *(b"x-prefill-router-exclude", b"x-prefill-router-scored", b"x-session-id"),
    *(b"x-prefill-router-unknown", b"traceparent", b"accept", b"anthropic-version", b"cookie"),
)


@final
@dataclass(frozen=True)
class Case:
    """One thing to send.

    Attributes:
        kind: What is wrong with it.
        data: The bytes.
        replies: How many replies are due. 0: no complete request was sent, and the client leaves.
        ends: Whether the connection can't be used afterwards.
    """

    kind: str
    data: bytes
    replies: int = 1
    ends: bool = False


def cases(count: int, *, seed: int) -> Iterator[Case]:
    """`count` malformed requests, the same for the same seed."""
    chance = random.Random(seed)
    makers = [*[_body] * 12, *[_heads] * 3, *[_framing] * 2, _lines, _make_chunked, _make_pipelined]
    for _ in range(count):
        yield chance.choice(makers)(chance)


def good(path: str, **fields: Any) -> bytes:
    """A good request."""
    return request(path, dump_json({**BODIES[path], **fields}))


def request(
    path: str,
    body: bytes,
    *,
    more: tuple[bytes, ...] = (),
    kind: bytes | None = b"application/json",
    length: bytes | None = None,
    method: bytes = b"POST",
    key: bytes = KEY.encode(),
) -> bytes:
    """A request as bytes."""
    rows = [b"%b %b HTTP/1.1" % (method, path.encode()), b"host: 127.0.0.1"]
    rows.append(b"authorization: Bearer " + key)
    if kind is not None:
        rows.append(b"content-type: " + kind)
    rows += more
    if length != b"none":
        rows.append(b"content-length: " + (b"%d" % len(body) if length is None else length))
    return b"\r\n".join(rows) + b"\r\n\r\n" + body


def dump_json(value: Any) -> bytes:
    """As JSON, with lone surrogates as escapes."""
    return json.dumps(value).encode()


# Bodies.


def _body(chance: random.Random) -> Case:
    path = chance.choice(_ROUTES)
    name, bend = chance.choice(_BENDS)
    return Case(f"body: {name}", request(path, bend(chance, path)))


def _bent_value(chance: random.Random, path: str) -> bytes:
    value = json.loads(json.dumps(BODIES[path]))
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(value))
        holder, name = chance.choice(places)
        if chance.random() < 0.2 and isinstance(holder, dict):
            del holder[name]
        else:
            holder[name] = deepcopy(chance.choice(_VALUES))
        if not value:
            break
    return dump_json(value)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in list(rows):
        yield value, name
        if isinstance(item, dict | list):
            yield from _places(item)


def _bytes_of(chance: random.Random, path: str) -> bytearray:
    del chance
    return bytearray(dump_json(BODIES[path]))


def _cut(chance: random.Random, path: str) -> bytes:
    body = _bytes_of(chance, path)
    return bytes(body[: chance.randrange(len(body))])


def _flip_bytes(chance: random.Random, path: str) -> bytes:
    body = _bytes_of(chance, path)
    for _ in range(chance.choice((1, 2, 8))):
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    return bytes(body)


def _insert_bytes(chance: random.Random, path: str) -> bytes:
    body = _bytes_of(chance, path)
    place = chance.randrange(len(body))
    body[place:place] = chance.choice(
        (b"\0", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"}", b"]", b'"')
    )
    return bytes(body)


def _deep(chance: random.Random, path: str) -> bytes:
    depth = chance.choice((50, 500, 5_000, 100_000))
    opened, closed = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nested = opened * depth + (b"1" + closed * depth if chance.random() < 0.7 else b"")
    return _with_field(path, chance.choice(("extra", "messages", "metadata", "input")), nested)


def _number(chance: random.Random, path: str) -> bytes:
    numbers = (
        *(b"1" * 5000, b"1e999999", b"-1e999999", b"NaN", b"Infinity", b"-Infinity", b"0x10"),
        *(b"1e-999999", b"00", b"1.", b".5", b"+1", b"9" * 20, b"1E400", b"-0", b"1_000"),
    )
    names = ("max_tokens", "temperature", "extra", "score", "lam", "seed", "max_output_tokens")
    return _with_field(path, chance.choice(names), chance.choice(numbers))


def _twice(chance: random.Random, path: str) -> bytes:
    name = chance.choice((*BODIES[path], "extra"))
    value = BODIES[path].get(name, chance.choice((1, "auto", None)))
    return b"{%b:%b," % (dump_json(name), dump_json(value)) + dump_json(BODIES[path])[1:]


def _odd_text(chance: random.Random, path: str) -> bytes:
    texts = (
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\x"', b'"\\u12"', b"'auto'"),
        *(b'"\xff"', b'"' + b"a" * 200_000 + b'"', b'"\t"', b'"\\ud83d\\ude00"', b'"\x7f"'),
    )
    names = ("model", "extra", "user", "id", "source", "previous_response_id")
    return _with_field(path, chance.choice(names), chance.choice(texts))


def _whole(chance: random.Random, path: str) -> bytes:
    good_one = dump_json(BODIES[path])
    return chance.choice(
        (
            *(b"", b" ", b"null", b"[]", b"1", b'"auto"', b"true", b"{}", b"[" + good_one + b"]"),
            *(good_one + good_one, b"\xef\xbb\xbf" + good_one, good_one.decode().encode("utf-16")),
            *(good_one + b"\0", b"\0" + good_one, good_one + b",", b"\xff" * 100, b"a=b&c=d"),
            *(good_one.decode().encode("utf-32"), b"{" * 1000, good_one.replace(b'"', b"'")),
        )
    )


def _with_field(path: str, name: str, value: bytes) -> bytes:
    """The good body with one field in place, or at its end, written so."""
    fields = {dump_json(key): dump_json(one) for key, one in BODIES[path].items()}
    fields[dump_json(name)] = value
    return b"{" + b",".join(b"%b:%b" % pair for pair in fields.items()) + b"}"


_BENDS: tuple[tuple[str, Callable[[random.Random, str], bytes]], ...] = (
    *(("a value", _bent_value),) * 4,
    *(
        ("cut", _cut),
        ("flipped bits", _flip_bytes),
        ("bytes put in", _insert_bytes),
        ("deep", _deep),
    ),
    *(("a number", _number), ("a name twice", _twice), ("a text", _odd_text), ("whole", _whole)),
)

# Heads.


def _heads(chance: random.Random) -> Case:
    path = chance.choice(_ROUTES)
    body = dump_json(BODIES[path])
    if chance.random() < 0.5:
        row = b"%b: %b" % (chance.choice(_WISHES), chance.choice(_HEAD_VALUES))
        rows = (row, row) if chance.random() < 0.2 else (row,)
        return Case("a header's value", request(path, body, more=rows))
    kinds = (b"text/plain", b"application/x-www-form-urlencoded", b"", b"application/json;;", None)
    encoded = ((b"content-encoding: gzip",), (b"content-encoding: identity",))
    lying = (b"origin: http://evil.example", b"sec-fetch-site: cross-site", b"host: evil.example")
    upgrade = (b"connection: upgrade", chance.choice((b"upgrade: h2c", b"upgrade: websocket")))
    if chance.random() < 0.1:
        return Case("an upgrade", request(path, body, more=upgrade), ends=True)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: request(path, body, kind=chance.choice(kinds)),
        lambda: request(path, body, more=chance.choice(encoded)),
        lambda: request(path, body, more=(chance.choice(lying),)),
        lambda: request(path, body, key=chance.choice((WRONG_KEY.encode(), b"", b"\xff", b" x "))),
        lambda: request(path, body, more=(b"x-api-key: " + WRONG_KEY.encode(),)),
        lambda: request(path, body, more=tuple(b"h%d: 1" % n for n in range(200))),
        lambda: request(path, body, more=(b"expect: 100-continue",)),
    )
    return Case("headers", chance.choice(ways)())


def _lines(chance: random.Random) -> Case:
    """Methods, paths and first lines."""
    path = chance.choice(_ROUTES)
    odd = (
        *("/v1/models/%00", "/v1/models/%ff%fe", "/%2e%2e/%2e%2e/etc/passwd", "//", "/v1", "/?a=%"),
        *("/page/api/decisions?limit=0", "/page/api/decisions/%00", "/page/api/whatif?lam=nan"),
        *("/page/api/decisions?after=%ff&limit=5", "/page/..%2f..%2fetc/passwd", "/docs", "/v1/x"),
        *("/page/api/whatif?lam=0.5&lam=2", "/v1/models/" + "a" * 2000, "/page/api/nothing"),
        *("http://127.0.0.1/v1/models", "/v1/models/auto?x=" + "b" * 9000, "/page/api/whatif"),
    )
    if chance.random() < 0.6:
        method = chance.choice((b"GET", b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"PATCH"))
        place = chance.choice((*odd, path))
        return Case(
            f"{method.decode()} {place[:30]}", request(place, b"", method=method), ends=True
        )
    raw = (
        *(b"GET\r\n\r\n", b"\r\n\r\nGET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1 x\r\n\r\n"),
        *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60, b"\0" * 100),
        *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n"),
        *(b"GET /\xff HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", b"FOO / HTTP/1.1\r\n\r\n"),
        *(b"GET / HTTP/1.1\r\nhost 127.0.0.1\r\n\r\n", b"GET / HTTP/1.1\r\na\0b: 1\r\n\r\n"),
        *(b"GET / HTTP/1.1\r\nh: \0\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n"),
        *(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"),
        b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"y" * 60_000 + b"\r\n\r\n",
    )
    return Case("a first line", chance.choice(raw), ends=True)


# Framing.


def _framing(chance: random.Random) -> Case:
    path = chance.choice(_ROUTES)
    body = dump_json(BODIES[path])
    size = len(body)
    short = b"%d" % chance.randrange(size)
    wrong = chance.choice((b"abc", b"-1", b"1e3", b"", b"99999999999999999999", b"0x10", b"+5"))
    roll = chance.random()
    if roll < 0.3:
        return Case("a length too small", request(path, body, length=short), ends=True)
    if roll < 0.6:
        return Case("a length that is none", request(path, body, length=wrong), ends=True)
    if roll < 0.75:
        twice = (b"content-length: %d" % (size + 1),)
        return Case("two lengths", request(path, body, more=twice), ends=True)
    if roll < 0.85:
        both = (b"transfer-encoding: chunked",)
        return Case("a length, and chunks", request(path, body, more=both), ends=True)
    if roll < 0.95:
        far = b"%d" % (size + 1 + chance.randrange(100))
        return Case("a length too great", request(path, body, length=far), replies=0, ends=True)
    return Case("a body too long", request(path, body, length=b"999999999"), ends=True)


def _make_chunked(chance: random.Random) -> Case:
    path = chance.choice(_ROUTES)
    body = dump_json(BODIES[path])
    half = len(body) // 2
    chunks = [body[:half], body[half:]]
    head = request(path, b"", more=(b"transfer-encoding: chunked",), length=b"none")
    whole = head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    ways = (
        Case("chunks", whole),
        Case("chunks with extensions", whole.replace(b"\r\n" + body[:3], b";a=b\r\n" + body[:3])),
        Case("chunks with trailers", whole[:-2] + b"x-session-id: t\r\nhost: evil\r\n\r\n"),
        Case("a chunk's size that is none", head + b"zz\r\n" + body + b"\r\n0\r\n\r\n", ends=True),
        Case("a chunk that is too long", head + b"5\r\n" + body + b"\r\n0\r\n\r\n", ends=True),
        Case("a size without an end", head + b"f" * 40 + b"\r\n", ends=True),
        Case("chunks without an end", whole[:-5], replies=0, ends=True),
    )
    return chance.choice(ways)


def _make_pipelined(chance: random.Random) -> Case:
    several = [chance.choice((_body, _heads))(chance) for _ in range(chance.choice((2, 3, 5)))]
    data = b"".join(case.data for case in several)
    if chance.random() < 0.3:  # what follows is no request
        return Case("garbage behind requests", data + b"\xff\xfe\r\n\r\n", len(several) + 1, True)
    return Case("several at once", data, replies=len(several))
