"""Which of LiteLLM's model groups are asked for a deployment, one after the other."""

from collections.abc import Mapping, Sequence
from typing import Any


def candidates(
    model_list: Sequence[Any],
    *,
    order: Sequence[str],
    model: str,
    routed: bool,
    failed: Mapping[str, int],
) -> tuple[str, ...]:
    """Names that LiteLLM is to pick a deployment by, in turn; empty where it has none.

    A target that has no group of its name is looked for among the deployments' models, with and
    without the provider's name, which LiteLLM knows as names too.

    Args:
        model_list: The Router's deployments.
        order: Targets, the chosen one first; empty without a decision.
        model: What the request asks for.
        routed: Whether that is the group whose requests are routed; where it has no deployments
            either, the Router's first group is the last resort.
        failed: How often each deployment failed at this request, by its id: targets that failed
            as often as they have deployments are asked after the others.
    """
    every = [row for row in model_list if isinstance(row, Mapping)]
    groups = [row["model_name"] for row in every if isinstance(row.get("model_name"), str)]
    rounds: dict[str, int] = {}
    names: list[str] = []
    for target in order:
        name = target if target in groups else _model_of(target, every)
        if name is not None and name not in names:
            names.append(name)
            rows = [row for row in every if name in _names(row)]
            rounds[name] = sum(failed.get(_id(row), 0) for row in rows) // len(rows)
    names.sort(key=rounds.__getitem__)
    last = model if not routed or model in groups else next(iter(groups), None)
    if last is not None and last not in names:
        names.append(last)
    return tuple(names)


def _names(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What LiteLLM knows a deployment by."""
    params = row.get("litellm_params")
    return (row.get("model_name"), params.get("model") if isinstance(params, Mapping) else None)


def _model_of(target: str, every: Sequence[Mapping[str, Any]]) -> str | None:
    for row in every:
        model = _names(row)[1]
        if isinstance(model, str) and target in (model, model.partition("/")[2]):
            return model
    return None


def _id(row: Mapping[str, Any]) -> str:
    info = row.get("model_info")
    return str(info.get("id")) if isinstance(info, Mapping) else ""
