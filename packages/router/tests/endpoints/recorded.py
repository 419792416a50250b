"""Streams shaped like those of each provider: a question of 12 tokens, answered `4` after thinking.

The shapes follow the providers' documentation; ids and words are made up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefill_router.targets import Dialect

Chunk = dict[str, Any]
THOUGHT = "two and two"


@dataclass(frozen=True)
class RecordedStream:
    """The stream of one provider, and the reply that must be read from it.

    Attributes:
        chunks: The stream's.
        reasoning: The trace that comes back.
        cached: Cached tokens; None where unsaid.
        reasoning_tokens: None where unsaid.
        response: What must be in `Reply.response`.
        dialect: Where it isn't the key's.
    """

    chunks: list[Chunk]
    reasoning: str = THOUGHT
    cached: int | None = None
    reasoning_tokens: int | None = None
    response: Mapping[str, Any] = field(default_factory=dict)
    dialect: Dialect | None = None


def chunk(
    delta: Chunk, *, finish: str | None = None, choice: Chunk | None = None, **top: Any
) -> Chunk:
    beside = {"index": 0, "delta": delta, "finish_reason": finish, **(choice or {})}
    head = {"id": "r-1", "object": "chat.completion.chunk", "created": 1763000000}
    return {**head, "model": "served-1", "choices": [beside], **top}


def last_chunk(usage: Chunk, **top: Any) -> Chunk:
    return {**chunk({}), "choices": [], "usage": usage, **top}


COUNTS = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}

RECORDED: dict[str, RecordedStream] = {
    "openai": RecordedStream(
        [
            chunk({"role": "assistant", "content": "", "refusal": None}, service_tier="default"),
            chunk({"content": "4"}, choice={"logprobs": None}, obfuscation="x1"),
            chunk({}, finish="stop", usage=None, system_fingerprint="fp_7"),
            last_chunk(
                {
                    **COUNTS,
                    "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
                },
            ),
        ],
        reasoning="",
        cached=8,
        reasoning_tokens=4,
        response={"id": "r-1", "system_fingerprint": "fp_7", "service_tier": "default"},
    ),
    "anthropic": RecordedStream(
        [
            chunk({"role": "assistant", "content": "4"}),
            chunk({}, finish="stop"),
            last_chunk(COUNTS),
        ],
        reasoning="",
    ),
    "gemini": RecordedStream(
        [
            chunk({"role": "assistant", "content": "4"}, usage=COUNTS),
            chunk({"role": "assistant"}, finish="stop", usage=COUNTS),
        ],
        reasoning="",
    ),
    "vllm": RecordedStream(
        [
            chunk({"role": "assistant", "content": ""}, prompt_token_ids=None),
            chunk({"reasoning": "two "}, choice={"token_ids": None}),
            chunk({"reasoning": "and two"}),
            chunk({"content": "4"}),
            chunk({"content": ""}, finish="stop", choice={"stop_reason": 151645}),
            last_chunk({**COUNTS, "prompt_tokens_details": None}),
        ],
        response={"stop_reason": 151645},
    ),
    "vllm-older": RecordedStream(
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": THOUGHT}),
            chunk({"content": "4"}, usage={**COUNTS, "completion_tokens": 1}),
            chunk({"content": ""}, finish="stop", usage=COUNTS),
        ],
        dialect="vllm",
    ),
    "sglang": RecordedStream(
        [
            chunk({"role": "assistant", "content": "", "reasoning_content": None}, usage=None),
            chunk({"content": None, "reasoning_content": THOUGHT, "tool_calls": None}),
            chunk({"content": "4", "reasoning_content": None}),
            chunk({"content": None}, finish="stop", choice={"matched_stop": 7}),
            last_chunk({**COUNTS, "reasoning_tokens": 4}),
        ],
        reasoning_tokens=4,
        response={"matched_stop": 7},
    ),
    "openrouter": RecordedStream(
        [
            chunk(
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning": text,
                    "reasoning_details": [
                        {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
                    ],
                },
                choice={"native_finish_reason": None},
                provider="Somebody",
            )
            for text in ("two ", "and two")
        ]
        + [
            chunk({"content": "4"}, provider="Somebody"),
            chunk({"content": ""}, finish="stop", choice={"native_finish_reason": "end_turn"}),
            {
                **chunk({"content": ""}, finish="stop"),
                "usage": {
                    **COUNTS,
                    "cost": 0.00042,
                    "is_byok": False,
                    "prompt_tokens_details": {"cached_tokens": 0},
                    "cost_details": {"upstream_inference_cost": None},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
            },
        ],
        cached=0,
        reasoning_tokens=4,
        response={
            "provider": "Somebody",
            "native_finish_reason": "end_turn",
            "reasoning_details": [
                {"type": "reasoning.text", "text": THOUGHT, "format": "unknown", "index": 0}
            ],
        },
    ),
    "openrouter-details": RecordedStream(
        [
            chunk(
                {"content": "", "reasoning_details": [{"type": "reasoning.summary", "summary": t}]}
            )
            for t in ("two ", "and two")
        ]
        + [chunk({"content": "4"}), chunk({}, finish="stop"), last_chunk(COUNTS)],
        dialect="openrouter",
    ),
    "deepseek": RecordedStream(
        [
            chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
            chunk({"content": None, "reasoning_content": THOUGHT}),
            chunk({"content": "4", "reasoning_content": None}),
            {
                **chunk({"content": "", "reasoning_content": None}, finish="stop"),
                "usage": {
                    **COUNTS,
                    "completion_tokens_details": {"reasoning_tokens": 4},
                    "prompt_cache_hit_tokens": 8,
                    "prompt_cache_miss_tokens": 4,
                },
            },
        ],
        cached=8,
        reasoning_tokens=4,
    ),
    "qwen": RecordedStream(
        [
            chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
            chunk({"content": None, "reasoning_content": THOUGHT}),
            chunk({"content": "4", "reasoning_content": None}),
            chunk({"content": "", "reasoning_content": None}, finish="stop"),
            last_chunk({**COUNTS, "completion_tokens_details": {"reasoning_tokens": 4}}),
        ],
        reasoning_tokens=4,
    ),
    "nemotron": RecordedStream(
        [
            chunk({"role": "assistant", "content": "<thi"}),
            chunk({"content": "nk>\ntwo and"}),
            chunk({"content": " two\n</th"}),
            chunk({"content": "ink>\n\n"}),
            chunk({"content": "4"}),
            chunk({"content": ""}, finish="stop"),
            last_chunk(COUNTS),
        ],
        response={"reasoning_was_inline": True},
    ),
    "opened-by-the-template": RecordedStream(
        [
            chunk({"content": "two and two</think>"}),
            chunk({"content": "4"}, finish="stop"),
            last_chunk(COUNTS),
        ],
        dialect="nemotron",
    ),
    "mistral-behind-vllm": RecordedStream(
        [
            chunk(
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}]}
            ),
            chunk({"content": [{"type": "text", "text": "4"}]}, finish="stop"),
            last_chunk(COUNTS),
        ],
        dialect="vllm",
    ),
    "usage-in-the-choice": RecordedStream(
        [
            chunk({"reasoning_content": THOUGHT}),
            chunk({"content": "4"}, finish="stop", choice={"usage": COUNTS}),
        ],
        dialect="openai",
    ),
    "anthropic-names": RecordedStream(
        [
            chunk({"content": "4"}, finish="stop"),
            last_chunk({"input_tokens": 4, "cache_read_input_tokens": 8, "output_tokens": 5}),
        ],
        reasoning="",
        cached=8,
        dialect="anthropic",
    ),
    "reasoning-outside-the-output": RecordedStream(
        [
            chunk({"reasoning_content": THOUGHT}),
            chunk({"content": "4"}, finish="stop"),
            last_chunk(
                {
                    "prompt_tokens": 12,
                    "completion_tokens": 1,
                    "total_tokens": 17,
                    "completion_tokens_details": {"reasoning_tokens": 4},
                }
            ),
        ],
        reasoning_tokens=4,
        dialect="openai",
    ),
}


def in_one_piece(recorded: RecordedStream) -> Chunk:
    """The same as a server sends it that doesn't stream."""
    message: Chunk = {"role": "assistant", "content": "4"}
    if recorded.reasoning:
        message["reasoning_content"] = recorded.reasoning
    usage = next(c["usage"] for c in reversed(recorded.chunks) if c.get("usage"))
    return {
        "id": "r-1",
        "object": "chat.completion",
        "model": "served-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
