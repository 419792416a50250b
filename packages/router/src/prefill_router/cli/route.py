"""`prefill-router route`: chooses the target of one request, or runs a cascade of targets."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, columns, out, print_json
from prefill_router.cli.commands import UsageError
from prefill_router.errors import ConfigError, FormatError, UpstreamError
from prefill_router.money import dollars

if TYPE_CHECKING:
    from prefill_router.data import Prompt
    from prefill_router.endpoints import Reply
    from prefill_router.policy import CascadeRun
    from prefill_router.router import CascadePlan, Decision
    from prefill_router.targets import Pool


@app.command()
def route(
    folder: opt.RouterFolder,
    prompt: Annotated[
        str,
        typer.Argument(metavar="PROMPT", help="The request, or - to read it from standard input."),
    ],
    given_lam: opt.OwnLam = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The request is a JSON list of {role, content} messages.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Choose only among these targets, separated by commas.")
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    answer: Annotated[
        bool, typer.Option("--answer", help="Ask the chosen target and print its answer too.")
    ] = False,
    pool: Annotated[
        Path | None,
        typer.Option(help="For --answer: the pool file with the targets' endpoints."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON.")] = False,
) -> None:
    """Choose the target that should answer a request, and say why.

    Example: prefill-router route router "Prove that 2 is irrational." --lam 0.7
    """
    from prefill_router.policy import Cascade
    from prefill_router.router import plan_cascade

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # one prompt: don't spin
    endpoints = _read_endpoints(pool) if answer else None
    text = _standard_input() if prompt == "-" else prompt
    if not prompt and not chat:
        raise UsageError("PROMPT is empty; write the request, or - to read it from standard input")
    request = _read_messages(text) if chat else text
    names = None if only is None else [name.strip() for name in only.split(",")]
    router = opt.load_router(folder, encoder_folder)
    lam = opt.own_lam(router, given_lam)
    if isinstance(router.policy, Cascade):
        if names is not None:
            raise ConfigError("a cascade has targets of its own; leave out --only")
        plan = plan_cascade(router, request, lam=lam)
        _show_cascade(plan, request, endpoints, as_json=as_json)
        return
    decision = router.route(request, lam=lam, only=names)
    if not as_json:
        _show_decision(decision)
    if endpoints is not None:
        from prefill_router.endpoints import ask_once

        try:
            reply = ask_once(endpoints, decision.target, request)
        except UpstreamError:
            if as_json:
                print_json(decision.to_dict() | {"reply": None})
            raise
        if not as_json:
            _show_reply(reply)
            return
        print_json(decision.to_dict() | {"reply": _reply_dict(reply)})
    elif as_json:
        print_json(decision.to_dict())


def _read_endpoints(pool: Path | None) -> "Pool":
    """The pool with the endpoints to ask; those of a router's folder may be somebody else's."""
    from prefill_router.targets import read_pool

    if pool is None:
        raise UsageError(
            "--answer needs the pool file: add --pool pool.yaml. It says where the request "
            "and the key are sent; a router's folder isn't trusted with that"
        )
    return read_pool(pool)


def _show_cascade(
    plan: "CascadePlan", prompt: "Prompt", endpoints: "Pool | None", *, as_json: bool
) -> None:
    """Print the targets that a cascade asks; ask them where their endpoints are given."""
    from prefill_router.endpoints import ask_once

    if not as_json:
        show_plan(plan)
    if endpoints is None:
        if as_json:
            print_json(plan.to_dict())
        return
    try:
        run = plan.run(
            lambda name: ask_once(endpoints, name, prompt), lambda reply: reply.usage.output_tokens
        )
    except UpstreamError:
        if as_json:
            print_json(plan.to_dict() | {"reply": None})
        raise
    if as_json:
        trail = [vars(step) for step in run.trail]
        outcome = {"target": run.target, "asked": trail, "reply": _reply_dict(run.answer)}
        print_json(plan.to_dict() | outcome)
        return
    show_trail(run)
    _show_reply(run.answer)


def _reply_dict(reply: "Reply") -> dict[str, Any]:
    usage = {name: value for name, value in vars(reply.usage).items() if name != "reported"}
    names = ("text", "reasoning", "finish_reason", "served_by", "first_token_seconds", "seconds")
    return {**{name: getattr(reply, name) for name in names}, "usage": usage}


def _show_reply(reply: "Reply") -> None:
    out.print(f"\n{reply.text.strip()}\n", style="bold")
    tokens = "" if reply.usage.output_tokens is None else f"{reply.usage.output_tokens:,} tokens, "
    out.print(
        f"answered by {reply.served_by or 'the target'}: {tokens}{reply.seconds:.2f} s", style="dim"
    )


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", file="standard input") from None


def _read_messages(text: str) -> "Prompt":
    from prefill_router.router import as_prompt

    try:
        return as_prompt(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}", file="the request") from None


def _show_decision(decision: "Decision") -> None:
    scored = decision.policy == "lambda"
    by = "" if scored else f" by the policy {decision.policy}"
    out.print(Text.assemble((decision.target, "bold"), f" at lam = {decision.lam:g}{by}"))
    table = columns(
        "target", decision.chance_title, "estimated cost", *(["score"] if scored else [])
    )
    for name in decision.order:
        score = [f"{decision.score[name]:+.4f}"] if scored else []
        correct, cost = decision.correctness[name], decision.estimated_cost[name]
        amount = "unknown" if cost is None else dollars(cost)
        table.add_row(name, f"{correct:.3f}", amount, *score)
    out.print(table)
    below, above = decision.changes_below, decision.changes_above
    if below is not None:
        out.print(f"at lam = {below.lam_to:.4f} and below: {below.target}")
    if above is not None:
        out.print(f"above lam = {above.lam_from:.4f}: {above.target}")
    cut = ", too long for the encoder: its middle was left out" if decision.truncated else ""
    out.print(f"{decision.input_tokens} tokens read{cut}", style="dim")


def show_plan(plan: "CascadePlan") -> None:
    """Print the targets that a cascade asks, and the score that is enough."""
    out.print(f"a cascade at lam = {plan.lam:g}: the first answer that scores enough is taken")
    table = columns("ask", "enough", "P(correct)", "estimated cost")
    for stage in plan.stages:
        enough = "any" if stage.threshold is None else f"{stage.threshold:.3f}"
        cost = dollars(stage.estimated_cost)
        table.add_row(stage.target, enough, f"{stage.correctness:.3f}", cost)
    out.print(table)
    cut = ", too long for the encoder: its middle was left out" if plan.truncated else ""
    out.print(f"{plan.input_tokens} tokens read{cut}", style="dim")


def show_trail(run: "CascadeRun[Reply]") -> None:
    """Print the targets that were asked, and the scores of their answers."""
    for step in run.trail:
        result = step.failure if step.score is None else f"scored {step.score:.3f}"
        out.say(f"asked {step.target}: {result}")
