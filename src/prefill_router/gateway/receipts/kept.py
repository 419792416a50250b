"""Prompts as receipts keep them."""

from prefill_router.data import Message, Prompt


def prompt_of(kept: str | list[dict[str, str]]) -> Prompt:
    """The prompt that was kept."""
    return kept if isinstance(kept, str) else tuple(Message(t["role"], t["content"]) for t in kept)


def as_kept(prompt: Prompt) -> str | list[dict[str, str]]:
    """A prompt as a receipt keeps it."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": turn.role, "content": turn.content} for turn in prompt]
