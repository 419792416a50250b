"""A stand-in for LiteLLM's Router: its documented interface, and nothing else of it."""

from collections.abc import Mapping, Sequence
from typing import Any


def deployment(group: str, model: str, place: str) -> dict[str, Any]:
    """An entry of `model_list`."""
    return {
        "model_name": group,
        "litellm_params": {"model": model, "api_base": "http://127.0.0.1:9/v1"},
        "model_info": {"id": place},
    }


def turns(said: Any) -> list[Any]:
    """A text as messages."""
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said)


class StandIn:
    """Picks the first deployment of a group that doesn't cool down, until a strategy is set."""

    def __init__(self, *deployments: dict[str, Any]) -> None:
        self.model_list = list(deployments)
        self.cooling: set[str] = set()
        self.picked: list[tuple[str, dict[str, Any]]] = []

    def set_custom_routing_strategy(self, strategy: Any) -> None:
        for name in ("get_available_deployment", "async_get_available_deployment"):
            setattr(self, name, getattr(strategy, name))

    def get_available_deployment(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        input: Any = None,  # noqa: A002
        specific_deployment: bool | None = False,
        request_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        given = {"messages": messages, "input": input, "request_kwargs": request_kwargs}
        self.picked.append((model, {**given, "specific_deployment": specific_deployment}))
        for one in self.model_list:
            known = (one["model_name"], one["litellm_params"]["model"])
            if model in known and one["model_info"]["id"] not in self.cooling:
                return one
        raise ValueError("No deployments available for selected model")

    async def async_get_available_deployment(self, model: str, **given: Any) -> dict[str, Any]:
        """As where LiteLLM has a strategy that isn't awaited: the other method is called."""
        return self.get_available_deployment(model=model, **given)

    def completion(self, model: str, messages: Any = "hi", **kwargs: Any) -> str:
        """Who would be asked; as LiteLLM calls its method."""
        kwargs["messages"] = turns(messages)
        found = self.get_available_deployment(
            model=model,
            messages=kwargs["messages"],
            specific_deployment=kwargs.pop("specific_deployment", None),
            request_kwargs=kwargs,
        )
        return str(found["model_info"]["id"])

    async def acompletion(self, model: str, messages: Any = "hi", **kwargs: Any) -> str:
        """The same, awaited."""
        kwargs["messages"] = turns(messages)
        found = await self.async_get_available_deployment(
            model=model,
            messages=kwargs["messages"],
            specific_deployment=kwargs.pop("specific_deployment", None),
            request_kwargs=kwargs,
        )
        return str(found["model_info"]["id"])

    async def aembedding(self, model: str, texts: list[str]) -> str:
        """Who would embed."""
        found = await self.async_get_available_deployment(
            model=model, input=texts, request_kwargs={"input": texts}
        )
        return str(found["model_info"]["id"])

    async def aresponses(self, model: str, text: Any, **kwargs: Any) -> str:
        """Who would answer in the Responses API: messages are None there."""
        found = await self.async_get_available_deployment(
            model=model, messages=None, request_kwargs={"input": text, **kwargs}
        )
        return str(found["model_info"]["id"])
