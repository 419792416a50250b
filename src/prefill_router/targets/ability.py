"""What targets can do, beside answering texts."""

from typing import Literal, get_args

Ability = Literal["tools", "images", "audio", "files", "json_schema"]
"""What a request may need of its target.

- `tools`: calling functions; `json_schema`: answers that follow a schema;
- `images`, `audio`, `files`: content parts of these kinds.
"""
ABILITIES: tuple[Ability, ...] = get_args(Ability)

Endpoint = Literal["chat", "completions", "responses", "embeddings", "messages"]
"""The calls that a target may serve: OpenAI's, and `messages`, which is Anthropic's."""
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
