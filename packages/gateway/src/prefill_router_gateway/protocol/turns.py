"""Reads the turns of a request of any endpoint: their text, conversation and needs.

Roles are mapped to those of `Message`: `developer` to `system`, `function` to `tool`, and unknown
roles to `user`. Contents are read in all formats of the protocols. The turns also give the
conversation that a request belongs to, the tool loop that it is in, and the abilities that a target
needs to answer it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, final

from prefill_router.agents import Turn, TurnRole
from prefill_router.data import Message
from prefill_router.targets import Ability, Endpoint
from prefill_router_gateway.records import CacheMark

_ROLES = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "developer": "system",
    "function": "tool",
}
_TOKEN_BYTES = 4


def read_turns(endpoint: Endpoint, value: Mapping[str, Any]) -> tuple[Message, ...]:
    """The text of every turn, system prompts first where they have a field of their own.

    Token ids have no text; a text to complete or to embed is a user turn.
    """
    if endpoint == "chat":
        return tuple(_chat_turn(turn) for turn in value["messages"])
    if endpoint == "messages":
        return (*_system(value.get("system")), *_anthropic_turns(value["messages"]))
    if endpoint == "responses":
        return (*_system(value.get("instructions")), *_items(value.get("input")))
    return tuple(_read_texts(value.get("prompt" if endpoint == "completions" else "input")))


@final
class AgentTurns:
    """The turns as coding agents write them, with their parts apart, read from either end.

    Args:
        endpoint: The endpoint; those of texts to complete or to embed have no turns.
        value: The body's fields.
    """

    def __init__(self, endpoint: Endpoint, value: Mapping[str, Any]) -> None:
        own, field, self._read, self._is_of_tools = _PLACES.get(endpoint, _PLACES["chat"])
        if endpoint not in _PLACES:
            own = field = ""
        self._leaves_out = False
        content = value.get(field)
        self._items = content if isinstance(content, list) else []
        self._before: list[Turn] = []
        if value.get(own):
            self._before.append(Turn("system", _texts_of(value[own])))
        if endpoint == "responses" and isinstance(content, str):
            self._before.append(Turn("user", (content,), is_one_text=True))

    def __iter__(self) -> Iterator[Turn]:
        yield from self._before
        for item in self._items:
            yield from self._read(item)

    def __reversed__(self) -> Iterator[Turn]:
        for item in reversed(self._items):
            if not (self._leaves_out and self._is_of_tools(item)):
                yield from reversed(self._read(item))
        yield from reversed(self._before)

    def leave_out_tools(self) -> None:
        """As `LongTurns`."""
        self._leaves_out = True


_ASSISTANT = Turn("assistant")


def _turn_of(role: str, content: object, calls: object = None) -> Turn:
    if role == "assistant":
        if not isinstance(calls, list) or not calls:
            return _ASSISTANT
        return Turn("assistant", calls=tuple(_name_and_arguments(call) for call in calls))
    role = role if role in ("system", "tool") else "user"
    return Turn(cast(TurnRole, role), _texts_of(content), is_one_text=isinstance(content, str))


def _of_chat(turn: Mapping[str, Any]) -> tuple[Turn, ...]:
    role = _ROLES.get(turn["role"], "user")
    return (_turn_of(role, turn.get("content"), turn.get("tool_calls")),)


_OF_ONE_CALL = frozenset(("id", "call_id", "status"))


def _name_and_arguments(call: object) -> tuple[object, object]:
    """The name and the arguments of a tool call; without a name, all that it does."""
    call = call if isinstance(call, dict) else {}
    if "name" in call:
        return call["name"], call.get("arguments", call.get("input"))
    for own in (call.get("function"), call.get("custom")):
        if isinstance(own, dict) and "name" in own:
            return own["name"], own.get("arguments", own.get("input"))
    return None, {name: value for name, value in call.items() if name not in _OF_ONE_CALL}


def _of_message(turn: Mapping[str, Any]) -> tuple[Turn, ...]:
    role, content = _ROLES.get(turn["role"], "user"), turn.get("content")
    if role == "assistant":
        uses = content if isinstance(content, list) else []
        return (_turn_of(role, content, [part for part in uses if _is_tool_use(part)]),)
    results = results_of(content) if role == "user" else []
    if not results:
        return (_turn_of(role, content),)
    turns = [
        Turn("tool", (_result_text(part),), has_failed=part.get("is_error") is True)
        for part in results
    ]
    if len(results) < len(content or ()):
        rest = [part for part in content or () if not _is_tool_result(part)]
        turns.append(_turn_of(role, rest))
    return tuple(turns)


def _is_tool_use(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_use"


def _result_text(part: Mapping[str, Any]) -> str:
    content = part.get("content")
    return content if isinstance(content, str) else content_text(content, 1)


def _of_item(item: Mapping[str, Any]) -> tuple[Turn, ...]:
    role, kind = item.get("role"), item.get("type")
    if isinstance(role, str):
        return (_turn_of(_ROLES.get(role, "user"), item.get("content")),)
    if is_result(item):
        return (Turn("tool", (content_text(item.get("output")),)),)
    is_call = isinstance(kind, str) and kind.endswith("_call")
    return (_turn_of("assistant", None, [item]),) if is_call else ()


def _is_chat_of_tools(turn: Mapping[str, Any]) -> bool:
    return turn["role"] in ("assistant", "tool")


def _is_message_of_tools(turn: Mapping[str, Any]) -> bool:
    if turn["role"] == "assistant":
        return True
    content = turn.get("content")
    return isinstance(content, list) and len(content) == 1 and _is_tool_result(content[0])


def _is_item_of_tools(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or "call_id" in item


_PLACES: dict[
    str,
    tuple[
        str,
        str,
        Callable[[Mapping[str, Any]], tuple[Turn, ...]],
        Callable[[Mapping[str, Any]], bool],
    ],
] = {
    "chat": ("", "messages", _of_chat, _is_chat_of_tools),
    "messages": ("system", "messages", _of_message, _is_message_of_tools),
    "responses": ("instructions", "input", _of_item, _is_item_of_tools),
}
"""For each endpoint the field of the system prompt, that of the turns, and what reads one.

And what shows at once that one is an assistant's or a tool's.
"""


def _texts_of(content: object) -> tuple[str, ...]:
    """The texts of a content's parts, each by itself."""
    if isinstance(content, str):
        return (content,)
    if not isinstance(content, list):
        return ()
    return tuple(filter(None, (part_text(part) for part in content)))


def token_id_bytes(endpoint: Endpoint, value: Mapping[str, Any]) -> int:
    """The approximate bytes of text sent as token ids, four for each."""
    if endpoint not in ("completions", "embeddings"):
        return 0
    content = value.get("prompt" if endpoint == "completions" else "input")
    if not isinstance(content, list):
        return 0
    ids = sum(len(part) if isinstance(part, list) else isinstance(part, int) for part in content)
    return ids * _TOKEN_BYTES


def is_result(item: Mapping[str, Any]) -> bool:
    """Whether an item of the Responses API is a tool's result."""
    kind = item.get("type")
    return isinstance(kind, str) and kind.endswith("call_output")


def _chat_turn(turn: Mapping[str, Any]) -> Message:
    content = turn.get("content")
    text = content if isinstance(content, str) else content_text(content)
    if "tool_calls" in turn or "function_call" in turn:
        text = "\n".join(filter(None, (text, calls_text(turn))))
    return Message(_ROLES.get(turn["role"], "user"), text)


def _system(content: object) -> Iterator[Message]:
    if isinstance(content, str | list) and content:
        yield Message("system", content_text(content))


def _anthropic_turns(turns: list[dict[str, Any]]) -> Iterator[Message]:
    for turn in turns:
        role, content = _ROLES.get(turn["role"], "user"), turn.get("content")
        results = results_of(content)
        if not results:
            yield Message(role, content_text(content))
            continue
        texts = (content_text(part.get("content"), 1) for part in results)
        yield Message("tool", "\n".join(filter(None, texts)))
        if len(results) < len(content or ()):
            rest = [part for part in content or () if not _is_tool_result(part)]
            yield Message(role, content_text(rest))


def results_of(content: object) -> list[dict[str, Any]]:
    """The tool results in the content of a message of Anthropic's API."""
    if not isinstance(content, list):
        return []
    return [part for part in content if _is_tool_result(part)]


def _is_tool_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _items(items: object) -> Iterator[Message]:
    if isinstance(items, str):
        yield Message("user", items)
    elif isinstance(items, list):
        for item in items:
            yield from _item(item)


def _item(item: Mapping[str, Any]) -> Iterator[Message]:
    role, kind = item.get("role"), item.get("type")
    if isinstance(role, str):
        yield Message(_ROLES.get(role, "user"), content_text(item.get("content")))
    elif is_result(item):
        yield Message("tool", content_text(item.get("output")))
    elif isinstance(kind, str) and kind.endswith("_call"):
        text = call_text(item.get("name"), item.get("arguments", item.get("input")))
        if text:
            yield Message("assistant", text)


def _read_texts(content: object) -> Iterator[Message]:
    if isinstance(content, str):
        yield Message("user", content)
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, str):
                yield Message("user", part)


MOST_DEEP = 4
"""The most levels of nested contents: a tool's result, a document in it, and its parts."""


def content_text(content: object, deep: int = 0) -> str:
    """The text of a content: the text itself, or that of its parts, on separate lines.

    Args:
        content: A text, a list of parts, or None; images and other media have no text.
        deep: How many contents it is nested in.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or deep >= MOST_DEEP:
        return ""
    if len(content) == 1:
        return part_text(content[0], deep)
    return "\n".join(filter(None, (part_text(part, deep) for part in content)))


def part_text(part: object, deep: int = 0) -> str:
    """The text of one part; that of a tool call is its name and arguments."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    for name in ("text", "refusal"):
        text = part.get(name)
        if isinstance(text, str):
            return text
    if part.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use"):
        return call_text(part.get("name"), part.get("input"))
    source = part.get("source")
    if isinstance(source, dict):  # a document; sources of other types are files
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return str(source["data"])
        return content_text(source.get("content"), deep + 1)
    return content_text(part.get("content"), deep + 1)


def call_text(name: object, arguments: object) -> str:
    """The text of a tool call: its name, and its arguments as written."""
    text = arguments if isinstance(arguments, str) else _write_arguments(arguments)
    return " ".join(filter(None, (name if isinstance(name, str) else "", text)))


def calls_text(turn: Mapping[str, Any]) -> str:
    """The texts of the tool calls in a chat message, on separate lines."""
    calls = turn.get("tool_calls")
    texts = [_call(call) for call in calls] if isinstance(calls, list) else []
    single = turn.get("function_call")
    if isinstance(single, dict):
        texts.append(call_text(single.get("name"), single.get("arguments")))
    return "\n".join(filter(None, texts))


def _call(call: object) -> str:
    if not isinstance(call, dict):
        return ""
    for kind, what in (("function", "arguments"), ("custom", "input")):
        called = call.get(kind)
        if isinstance(called, dict):
            return call_text(called.get("name"), called.get(what))
    return ""


def _write_arguments(arguments: object) -> str:
    if arguments is None:
        return ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:  # parsed with a shallower stack; the target may still read it
        return ""


_session_in = re.compile(r"""session(?:_?id)?["']?[\s:=_-]+["']?([0-9A-Za-z-]{8,128})""").search


def read_session_hint(endpoint: Endpoint, value: Mapping[str, Any]) -> str | None:
    """The client's own name of the conversation; None where it sends none.

    It is the first of: `metadata.session_id`; the `conversation` of the Responses API; a session in
    Anthropic's `metadata.user_id`, as some coding agents write it; `prompt_cache_key`, which names
    requests that share a prompt cache. `user`, `safety_identifier` and a `user_id` without a
    session are ignored: they name a person, who may have many conversations at once.
    """
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    conversation = value.get("conversation") if endpoint == "responses" else None
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    user = metadata.get("user_id") if endpoint == "messages" else None
    match = _session_in(user) if isinstance(user, str) else None
    hints = (metadata.get("session_id"), conversation, match and match[1])
    for hint in (*hints, value.get("prompt_cache_key")):
        if isinstance(hint, str) and hint.strip():
            return hint
    return None


def read_loop(endpoint: Endpoint, value: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The ids of the tool calls whose results end the request; None where no results end it."""
    if endpoint == "messages":
        turns = value["messages"]
        results = results_of(turns[-1].get("content")) if turns else []
        ids = [result.get("tool_use_id") for result in results]
        return tuple(name for name in ids if isinstance(name, str)) if results else None
    if endpoint == "chat":
        return _of_last(value["messages"], "tool_call_id", responses=False)
    items = value.get("input")
    if endpoint == "responses" and isinstance(items, list):
        return _of_last(items, "call_id", responses=True)
    return None


def _of_last(turns: list[dict[str, Any]], name: str, *, responses: bool) -> tuple[str, ...] | None:
    ids: list[str] = []
    results = 0
    for turn in reversed(turns):
        if not (is_result(turn) if responses else turn["role"] in ("tool", "function")):
            break
        results += 1
        if isinstance(turn.get(name), str):
            ids.append(turn[name])
    return tuple(reversed(ids)) if results else None


def holds_state(endpoint: Endpoint, value: Mapping[str, Any], body: bytes) -> bool:
    """Whether a request has what only the target that wrote it can read.

    That is signed thinking, encrypted reasoning, a compacted history, or the id of a file.

    Args:
        endpoint: The endpoint.
        value: The fields of the request.
        body: The request itself; most have none of the words, which is found soon.
    """
    if not any(word in body for word in _STATE_WORDS.get(endpoint, ())):
        return False
    return _holds_state(value.get("input" if endpoint == "responses" else "messages"), 0)


_BOUND_KINDS = ("redacted_thinking", "item_reference", "reasoning.encrypted")
_STATE_WORDS: Mapping[Endpoint, tuple[bytes, ...]] = {
    "chat": (b'"file_id"', b'"reasoning.encrypted"'),
    "messages": (b'"signature"', b'"redacted_thinking"', b'"file_id"'),
    "responses": (b'"encrypted_content"', b'"item_reference"', b'"file_id"'),
}


def _holds_state(parts: object, deep: int) -> bool:
    """Plain loops, since a long conversation has thousands of parts."""
    if not isinstance(parts, list):
        return False
    for part in reversed(parts):  # the newest ones have it
        if not isinstance(part, dict):
            continue
        if part.get("signature") or part.get("encrypted_content") or part.get("file_id"):
            return True
        if part.get("type") in _BOUND_KINDS:
            return True
        for name in ("file", "source"):
            file = part.get(name)
            if isinstance(file, dict) and file.get("file_id"):
                return True
        for name in ("content", "output", "reasoning_details"):
            inner = part.get(name)
            if inner and deep < MOST_DEEP and _holds_state(inner, deep + 1):
                return True
    return False


def read_cache_mark(endpoint: Endpoint, value: Mapping[str, Any], body: bytes) -> CacheMark | None:
    """For how long a request asks that its text is cached, by its newest `cache_control`.

    None where it has none. What comes before the newest mark is cached. In agents' requests that is
    nearly all, so that all is taken to be.

    Args:
        endpoint: The endpoint.
        value: The fields of the request.
        body: The request itself; most have no mark, which is found soon.
    """
    if endpoint not in ("messages", "chat") or _CACHE_WORD not in body:
        return None
    for part in (value, *(value.get(name) for name in ("messages", "system", "tools"))):
        mark = _newest_mark(part, 0)
        if mark is not None:
            return "hour" if mark.get("ttl") == "1h" else "minutes"
    return None


_CACHE_WORD = b'"cache_control"'


def _newest_mark(part: object, deep: int) -> Mapping[str, Any] | None:
    """The `cache_control` of a part or the last that is within it; of a whole request, its own."""
    if isinstance(part, list):
        return next(filter(None, (_newest_mark(p, deep) for p in reversed(part))), None)
    if not isinstance(part, dict):
        return None
    mark, inner = part.get("cache_control"), part.get("content")
    if isinstance(mark, dict):
        return mark
    return _newest_mark(inner, deep + 1) if isinstance(inner, list) and deep < MOST_DEEP else None


def asks_to_think(value: Mapping[str, Any]) -> bool:
    """Whether the fields of a request ask a model to think before it answers, in any dialect."""
    within = (value.get(name) for name in ("reasoning", "output_config", "chat_template_kwargs"))
    parts = [value, *(part for part in within if isinstance(part, Mapping))]
    efforts = {str(part.get(name)) for part in parts for name in ("reasoning_effort", "effort")}
    switches = ("enable_thinking", "thinking", "enabled")
    if efforts - _NO_THINKING or any(p.get(name) is True for p in parts for name in switches):
        return True
    thinking = value.get("thinking")
    return isinstance(thinking, Mapping) and thinking.get("type") in ("enabled", "adaptive")


_NO_THINKING = {"None", "none", "minimal"}
NOTHING: frozenset[Ability] = frozenset()
_PARTS: dict[str, Ability] = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "image_embeds": "images",
    "computer_screenshot": "images",
    "video_url": "images",  # the nearest ability: a model without vision can't read video
    "input_video": "images",
    "video": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "file": "files",
    "input_file": "files",
    "document": "files",
    "container_upload": "files",
    "tool_use": "tools",
    "tool_result": "tools",
}


def read_needs(endpoint: Endpoint, value: Mapping[str, Any]) -> frozenset[Ability]:
    """The abilities that a target needs to answer this request, other than text.

    A document with a text source still counts as a file, since it is sent as one.
    """
    if endpoint in ("completions", "embeddings"):
        return NOTHING
    needs: set[Ability] = set()
    tools = value.get("tools") or value.get("functions")
    if tools or _is_forced(value.get("tool_choice")) or _is_forced(value.get("function_call")):
        needs.add("tools")
    if _has_schema(value):
        needs.add("json_schema")
    modalities = value.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        needs.add("audio")
    turns = value.get("input" if endpoint == "responses" else "messages")
    if isinstance(turns, list):
        for turn in turns:
            _add_of_turn(turn, needs)
    return frozenset(needs) if needs else NOTHING


def _is_forced(choice: object) -> bool:
    return choice is not None and choice != "none"


def _has_schema(value: Mapping[str, Any]) -> bool:
    for name in ("response_format", "output_format"):
        if _is_schema(value.get(name)):
            return True
    for name in ("text", "output_config"):
        part = value.get(name)
        if isinstance(part, dict) and _is_schema(part.get("format")):
            return True
    return False


def _is_schema(format_: object) -> bool:
    return isinstance(format_, dict) and format_.get("type") == "json_schema"


def _add_of_turn(turn: Mapping[str, Any], needs: set[Ability]) -> None:
    content, role = turn.get("content"), turn.get("role")
    if role in ("tool", "function") or turn.get("tool_calls") or turn.get("function_call"):
        needs.add("tools")
    if isinstance(content, list):
        _add_of_parts(content, needs, 0)
    if role is None:  # an item of the Responses API
        kind, output = turn.get("type"), turn.get("output")
        if is_result(turn) or (isinstance(kind, str) and kind.endswith("_call")):
            needs.add("tools")
        _add_of_parts(output if isinstance(output, list) else [output], needs, 0)


def _add_of_parts(parts: list[Any], needs: set[Ability], deep: int) -> None:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" or not isinstance(kind, str):
            continue
        if kind in _PARTS:
            needs.add(_PARTS[kind])
        source = part.get("source")
        within = source.get("content") if isinstance(source, dict) else None
        for inner in (part.get("content"), within):
            if isinstance(inner, list) and deep < MOST_DEEP:
                _add_of_parts(inner, needs, deep + 1)
