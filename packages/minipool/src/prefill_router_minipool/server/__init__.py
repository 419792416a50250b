"""Serves language models over the OpenAI protocol, on loopback, with injected faults.

For tests there is a model without weights that answers from a script::

    from prefill_router_minipool.server import Faults, Persona, Rule, ScriptedModel, serve

    models = [
        ScriptedModel("small", {"What is 2 + 2?": "4"}, otherwise="I do not know."),
        ScriptedModel("large", lambda question: question.upper()),
    ]
    faults = Faults(
        rules=[
            Rule(kind="rate_limit", share=0.1, retry_after=0.05, form="ms"),
            Rule(kind="status", model="large", status=503, attempts=1),
            Rule(kind="break", contains="2 + 2", after=1, times=1),
        ],
        seed=0,
        personas={"large": Persona(style="deepseek", reasoning=5)},
    )
    with serve(models, faults=faults) as server:
        ...  # ask server.base_url, such as http://127.0.0.1:40001/v1; serve_pool() for real models
    for record in server.log:
        record.model, record.prompt_tokens, record.completion_tokens, record.fault

A record has the tokens that were really read and generated, and so what is billed, even if the
reply says otherwise. It is written before the reply ends, or shortly after a client has left or was
cut off. `server.stats()` has the sums. Servers share no state, so tests can run several.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
