"""The files and names that the guides speak of, made up; what a page makes itself isn't here.

`FOLDER` is what every page finds in its folder, `FILES` what a page finds besides, `NAMES` what the
Python of a page finds defined; `WHILE` makes what is there only while a page runs.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from packages.gateway.tests.litellm import stand_in as litellm_stand_in
from packages.gateway.tests.receipts import example_receipts
from packages.lab.tests.benchmarks import task_files
from packages.lab.tests.collection import runs as collecting
from packages.router.tests.encoders import families, vllm_stand_in
from packages.router.tests.endpoints import price_lists
from packages.router.tests.fakes.s3_server import s3_server
from packages.router.tests.grading import graded_runs
from packages.router.tests.importers import samples
from packages.router.tests.importers.call_log_samples import (
    litellm_rows,
    write_langfuse,
    write_openai_batch,
)
from packages.router.tests.importers.layout_samples import (
    write_lm_eval,
    write_promptfoo,
)
from packages.router.tests.importers.truth import write_csv, write_jsonl, write_parquet
from prefill_router import ActivationStore, Router, read_dataset
from prefill_router.data import Query, write_dataset
from prefill_router.importers import import_dataset
from prefill_router.router import VersionRegistry
from prefill_router.runs import Task
from prefill_router.targets import Pool, RequestOptions, Target, read_pool, write_pool
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.benchmarks import write_tasks
from prefill_router_minipool import make_tasks
from prefill_router_minipool.server import ScriptedModel, serve

ROOT = Path(__file__).parents[1]
FOLDER = ("answers", "states", "router")
Command = Callable[..., object]


def make_folder(folder: Path, command: Command) -> None:
    """The dataset, its states and a router of them."""
    write_dataset(make_routing_dataset(queries=160), folder / "answers")
    command("encode", folder / "answers", "--layers", "2,4,6", "--out", folder / "states")
    command("fit", folder / "answers", "--store", folder / "states", "--out", folder / "router")


def answers_with_effort(folder: Path) -> None:
    """A table of answers with a column of efforts, prices, and a pool with its questions."""
    page = (ROOT / "docs" / "guides" / "efforts.md").read_text(encoding="utf-8")
    targets = page.split("```yaml\n")[1].split("```")[0]
    lab = "providers:\n  - {name: lab, base_url: 'http://127.0.0.1:1/v1'}\n"
    (folder / "pool.yaml").write_text(lab + targets)
    task = Task(query=Query("q1", "6 x 7?"), grader="exact", answer=("42",))
    write_tasks([task], folder / "tasks.jsonl")
    answers = read_dataset(folder / "answers")
    shown = (("small", ""), ("large", "low"), ("large", "high"))
    pairs = list(zip(answers.pool.names[:3], shown, strict=True))
    rows = [
        {
            "query_id": query.id,
            "prompt": query.prompt,
            "model": model,
            "reasoning_effort": effort,
            "correct": answers.correct[row, answers.pool.names.index(name)],
            "input_tokens": 30,
            "output_tokens": 20 if effort != "high" else 200,
        }
        for row, query in enumerate(answers.queries)
        for name, (model, effort) in pairs
    ]
    write_csv(folder / "thinking.csv", rows)
    (folder / "prices.csv").write_text(
        "target,usd_per_million_input_tokens,usd_per_million_output_tokens\n"
        "small,0.1,0.4\nlarge,2,8\n"
    )


def data(folder: Path) -> None:
    """Tables and published collections, to be imported."""
    page = (ROOT / "docs" / "guides" / "data.md").read_text(encoding="utf-8")
    for name, part in zip(("answers.csv", "prices.csv"), page.split("```csv\n")[1:], strict=True):
        (folder / name).write_text(part.split("```")[0])
    rows = [
        {"prompt": f"{q}?", "target": t, "correct": 1, "benchmark": f"b{q % 2}"}
        for q in range(9)
        for t in ("small", "large")
    ]
    scored_rows = [{**row, "correct": 1 + q % 5} for q, row in enumerate(rows)]
    write_csv(folder / "judged.csv", scored_rows)
    write_csv(folder / "sampled.csv", [{**row, "correct": n % 2} for n, row in enumerate(rows)])
    for run in ("first", "second"):
        write_dataset(make_routing_dataset(queries=5, seed=1), folder / run)
    log = [{"question": r["prompt"], "llm": r["target"], "score": 0.5} for r in rows]
    write_jsonl(folder / "log.jsonl", log)
    wide = [
        {"prompt": f"{q}?", "small": 0, "large": 1, "small_usd": 0.1, "large_usd": 2.0}
        for q in range(9)
    ]
    write_parquet(folder / "scores.parquet", wide)
    samples.write_tree(folder)
    samples.write_tar(folder)[0].rename(folder / "bench.tar.gz")
    write_csv(folder / "routerbench_0shot.csv", samples.routerbench_rows())
    write_csv(folder / "gsm8k_responses.csv", samples.routellm_rows())
    write_csv(folder / "train_v1.csv", samples.nvidia_rows()[:4])
    write_csv(folder / "test_v1.csv", samples.nvidia_rows()[4:])
    for name in ("eval_results", "predictions"):
        (folder / name).mkdir()
    samples.write_mmlu_pro(folder / "eval_results", zipped=True)
    samples.write_routerarena(folder / "predictions")
    for file in write_openai_batch(folder)[:2]:
        file.rename(folder / {"in0": "requests.jsonl", "out0": "results.jsonl"}[file.stem])
    (folder / "export").mkdir()
    write_langfuse(folder / "export")
    write_lm_eval(folder)[0].rename(folder / "evals")
    write_promptfoo(folder)
    winners = ("model_a", "model_b", "tie", "model_a")
    votes = [
        {"prompt": f"What is {n}?", "model_a": "a", "model_b": "b", "winner": winners[n % 4]}
        for n in range(60)
    ]
    write_jsonl(folder / "votes.jsonl", votes)
    price = {"input_token_price_per_million": 1, "output_token_price_per_million": 2}
    (folder / "cost.json").write_text(json.dumps({"org/alpha": price}))


def datasets(folder: Path) -> None:
    """Datasets to be joined: two collections, and two runs of the same questions."""
    data(folder)
    for name, file in (
        ("routerbench", "routerbench_0shot.csv"),
        ("routellm", "gsm8k_responses.csv"),
    ):
        imported = import_dataset(name, [folder / file])[0]
        write_dataset(imported, folder / file.partition("_")[0])


def prompts_and_results(folder: Path) -> None:
    """Prompts, the results of their batches, and labels."""
    queries = make_routing_dataset(queries=40, seed=3).queries
    asked = [{"id": q.id, "prompt": q.prompt, "answer": "yes"} for q in queries]
    write_jsonl(folder / "prompts.jsonl", asked)
    usage = {"prompt_tokens": 90, "completion_tokens": 200}
    body = {
        "status_code": 200,
        "body": {"usage": usage, "choices": [{"message": {"content": "yes"}}]},
    }
    results = [{"custom_id": query.id, "response": body} for query in queries]
    write_jsonl(folder / "results.jsonl", results)
    write_csv(folder / "labels.csv", [{"id": query.id, "correct": 1} for query in queries])


def quickstart(folder: Path) -> None:
    """A table of scored answers, and a log without scores."""
    names = ("small", "large")
    rows = [
        {"question": f"{n}+{n + 1}?", "model": name, "score": 1 + (n * (k + 2)) % 5, "cost": k + 1}
        for n in range(60)
        for k, name in enumerate(names)
    ]
    write_csv(folder / "answers.csv", rows)
    (folder / "spend.json").write_text(json.dumps(litellm_rows()))


def tasks(folder: Path) -> None:
    """Questions, copies of benchmarks, a pool and a list of prices."""
    page = (ROOT / "docs" / "guides" / "tasks.md").read_text(encoding="utf-8")
    (folder / "questions.jsonl").write_text(page.split("```json\n")[1].split("```")[0])
    task_files.write_mmlu_pro(folder / "copies" / "mmlu_pro")
    task_files.write_livecodebench(folder / "copies" / "livecodebench")
    slow = Target(name="slow", model="google/gemini", input_price=2, output_price=8)
    write_pool(Pool((Target(name="fast"), slow)), folder / "pool.yaml")
    (folder / "models.json").write_text(json.dumps(price_lists.MODELS))


def a_run(folder: Path) -> None:
    """The pool of the guide, tasks, and a run of them."""
    page = (ROOT / "docs" / "guides" / "collecting.md").read_text(encoding="utf-8")
    (folder / "pool.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    collecting.write_tasks_file(folder / "tasks.jsonl", 6)
    collecting.make_run(folder / "run", read_pool(folder / "pool.yaml"), 4)


@contextmanager
def a_new_target(folder: Path) -> Iterator[None]:
    """Tasks for the dataset's queries, a target that answers them, and its answers scored."""
    answers = read_dataset(folder / "answers")
    easy = {query.prompt: "yes" for query in answers.queries if "0.8" not in query.prompt}
    tasks = [Task(query=query, grader="exact", answer=("yes",)) for query in answers.queries]
    write_tasks(tasks, folder / "tasks.jsonl")
    renamed = answers.select(targets=["target-1"])
    pool = Pool((replace(renamed.pool["target-1"], name="new"),))
    write_dataset(replace(renamed, pool=pool), folder / "scored")
    with serve([ScriptedModel("new", easy)]) as server:
        asked = RequestOptions(max_tokens=50)
        served = replace(pool["new"], base_url=server.base_url, request=asked)
        write_pool(Pool((served,)), folder / "pool.yaml")
        yield


def a_run_to_grade(folder: Path) -> None:
    """A run with answers of every kind."""
    graded_runs.every_kind(folder / "run")


@contextmanager
def readme(folder: Path) -> Iterator[None]:
    """Questions, and a pool that answers while this lasts: one target knows more than the other."""
    tasks = make_tasks(80, seed=0)
    write_tasks(
        [
            Task(query=Query(t.id, t.prompt, domain=t.domain), grader="exact", answer=(t.answer,))
            for t in tasks
        ],
        folder / "tasks.jsonl",
    )
    hard = {t.prompt: t.answer for t in tasks if t.difficulty < 4}
    easy = {t.prompt: t.answer for t in tasks if t.difficulty < 2}
    with serve([ScriptedModel("small", easy), ScriptedModel("large", hard)]) as server:
        options = RequestOptions(max_tokens=50)
        small, large = (
            Target(
                name=name, input_price=p, output_price=p, base_url=server.base_url, request=options
            )
            for name, p in (("small", 0.1), ("large", 1.0))
        )
        write_pool(Pool((small, large)), folder / "pool.yaml")
        yield


@contextmanager
def targets_that_answer(folder: Path) -> Iterator[None]:
    """A pool file of the router's targets, which answer while this lasts."""
    pool = read_pool(folder / "answers" / "pool.yaml")
    models = [ScriptedModel(name, {}, otherwise=f"{name} says hello.") for name in pool.names]
    with serve(models) as server:
        served = [replace(target, base_url=server.base_url) for target in pool]
        write_pool(Pool(tuple(served), pool.prices_date), folder / "pool.yaml")
        yield


def two_stores(folder: Path) -> None:
    """Two stores under other names."""
    for name in ("states-a", "states-b"):
        (folder / name).symlink_to(folder / "states", target_is_directory=True)


def predictions(folder: Path) -> dict[str, object]:
    """What a router predicts, under the names of the guide."""
    dataset = read_dataset(folder / "answers")
    stores = [ActivationStore.open(folder / "states")]
    predictions = Router.load(folder / "router").predict(dataset, stores=stores)
    pair = {"first": predictions, "second": predictions}
    return {"dataset": dataset, "predictions": predictions, **pair}


def a_router(folder: Path) -> dict[str, object]:
    """The router itself, besides what it predicts."""
    return {"router": Router.load(folder / "router"), **predictions(folder)}


def receipts(folder: Path) -> None:
    """What a gateway kept, and a recipe that needs no encoder."""
    example_receipts.write_traffic(folder / "receipts.sqlite", read_dataset(folder / "answers"))
    (folder / "recipe.yaml").write_text(
        "features: {kind: complexity}\npredictor: {kind: logistic}\n"
    )


def a_request(folder: Path) -> None:
    """The request of the guide."""
    page = (ROOT / "docs" / "guides" / "agents-reading.md").read_text(encoding="utf-8")
    (folder / "request.json").write_text(page.split("```json\n")[1].split("```")[0])


def litellm_file(folder: Path) -> None:
    """The configuration of the guide."""
    page = (ROOT / "docs" / "guides" / "litellm.md").read_text(encoding="utf-8")
    (folder / "config.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])


def litellm_router(folder: Path) -> dict[str, object]:
    """What stands for LiteLLM's Router, with a deployment of each of the router's targets."""
    names = Router.load(folder / "router").pool.names
    every = [litellm_stand_in.deployment(name, f"openai/{name}", name) for name in names]
    return {"litellm_router": litellm_stand_in.StandIn(*every)}


def recipes(folder: Path) -> None:
    """The routers of the guide, and a recipe alone."""
    page = (ROOT / "docs" / "guides" / "comparing.md").read_text(encoding="utf-8")
    (folder / "routers.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    recipe = "features: {kind: embedding, encoder: minilm}\npredictor: {kind: knn_score, k: 5}\n"
    (folder / "knn.yaml").write_text(recipe)


def a_language_model(folder: Path) -> None:
    """The encoder of the guide, small and random, in the type in which vLLM runs it."""
    families.save("qwen3", folder / "models" / "qwen3")


def vllm(folder: Path) -> AbstractContextManager[None]:
    """What stands for vLLM while the guide runs."""
    del folder
    return vllm_stand_in.installed()


def a_space(folder: Path) -> None:
    """What the guide searches."""
    page = (ROOT / "docs" / "guides" / "search.md").read_text(encoding="utf-8")
    (folder / "space.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])


def routers_to_study(folder: Path) -> None:
    """The routers of the guide, and the speeds of their targets."""
    for page, name in (("studies", "routers"), ("study-costs", "speeds")):
        text = (ROOT / "docs" / "guides" / f"{page}.md").read_text(encoding="utf-8")
        (folder / f"{name}.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])


def other_wordings(folder: Path) -> None:
    """Questions of RouterArena's form, the same in other words, and other words for the dataset."""
    wordings = make_routing_dataset(queries=12, seed=9).queries
    prompts_of = {f"Made-up_{i}": query.prompt for i, query in enumerate(wordings)}
    queries = read_dataset(folder / "answers").queries
    for name, prompts in {
        "router_data": prompts_of,
        "router_robustness": {
            index: f"Well: {prompts_of[index]}" for index in list(prompts_of)[:5]
        },
        "others": {query.id: f"Well: {query.prompt}" for query in queries},
    }.items():
        entries = [{"global index": i, "prompt_formatted": text} for i, text in prompts.items()]
        (folder / f"{name}.json").write_text(json.dumps(entries))


def a_version(folder: Path) -> None:
    """A version of the router, to which the guide adds another."""
    VersionRegistry.at(folder / "versions").add(Router.load(folder / "router"), {})


FILES: dict[str, Callable[[Path], None]] = {
    "agents-reading.md": a_request,
    "assign.md": prompts_and_results,
    "collecting.md": a_run,
    "README.md": quickstart,
    "comparing.md": recipes,
    "efforts.md": answers_with_effort,
    "data.md": data,
    "datasets.md": datasets,
    "formats.md": data,
    "votes.md": data,
    "grading.md": a_run_to_grade,
    "layers.md": two_stores,
    "feedback.md": receipts,
    "samples.md": receipts,
    "litellm.md": litellm_file,
    "my-data.md": quickstart,
    "quickstart.md": quickstart,
    "receipts.md": receipts,
    "robustness.md": other_wordings,
    "savings.md": receipts,
    "studies.md": routers_to_study,
    "study-costs.md": routers_to_study,
    "study-setup.md": routers_to_study,
    "search.md": a_space,
    "switchyard.md": a_language_model,
    "tasks.md": tasks,
    "troubleshooting.md": receipts,
    "versions.md": a_version,
    "vllm.md": a_language_model,
}
WHILE: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "README.md": readme,
    "add-target.md": a_new_target,
    "anthropic.md": targets_that_answer,
    "deployment.md": targets_that_answer,
    "gateway.md": targets_that_answer,
    "object-stores.md": lambda _: s3_server(),
    "production.md": targets_that_answer,
    "vllm.md": vllm,
}
NAMES: dict[str, Callable[[Path], dict[str, object]]] = {
    "doctor.md": a_router,
    "evaluation.md": predictions,
    "guarantee.md": a_router,
    "litellm-strategy.md": litellm_router,
    "robustness.md": a_router,
    "traffic-labels.md": predictions,
}
