"""Serving language models over the OpenAI protocol, on loopback, and breaking on purpose.

For tests, a model without weights says what it is told to say::

    from prefill_router.minipool.server import Faults, Persona, Rule, ScriptedModel, serve

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

A record holds what was really read and generated, and so what is billed, whatever the reply told.
It is there before the end of the reply is; where a client has left or was cut off, shortly after.
`server.stats()` gives sums. Nothing in it is shared with another server, so tests can run several.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
