"""The Helm chart, rendered by Helm and held against the schemas of Kubernetes."""

import json
from importlib import import_module
from typing import Any

import pytest
import yaml

from prefill_router_gateway.guard.host_names import HostNames
from prefill_router_gateway.settings import ListenSettings, read_settings
from tests.deploy import DEPLOY
from tests.deploy.rendered_chart import render_chart

pytest.importorskip("helm_python")
pytest.importorskip("lightkube")
pytestmark = pytest.mark.slow

POOL = "targets: [{name: small, context_tokens: 10000000}]\n"
LEAST: dict[str, Any] = {
    "image": {"repository": "registry.example/prefill-router"},
    "pool": POOL,
    "keysSecret": "keys",
    "router": {"volume": {"persistentVolumeClaim": {"claimName": "router"}}},
    "receipts": {"url": "postgresql://router@db/router"},
}
MOST: dict[str, Any] = {
    **LEAST,
    "config": "routing: {lam: 0.7}\n",
    "router": {"fetch": {"image": "x", "command": ["get"], "environmentSecret": "s"}, "path": "r"},
    "environmentSecret": "environment",
    "environment": {"HTTPS_PROXY": "http://proxy.example:3128"},
    "shared": {"url": "postgresql://router@db/shared"},
    "hosts": ["gateway.example"],
    "listen": {"unreadySeconds": 20, "drainSeconds": 300},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "keySecret": {"name": "scrape", "key": "key"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
    "extraArguments": ["--lam=0.5"],
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "imagePullSecrets": [{"name": "pull"}],
    "service": {"annotations": {"a": "b"}},
}
NEEDED = ("image", "pool", "keysSecret", "router", "receipts")


@pytest.fixture(scope="module")
def charts() -> tuple[list[str], list[Any]]:
    without = [{k: v for k, v in LEAST.items() if k != name} for name in NEEDED]
    guide = (DEPLOY.parent / "docs" / "guides" / "deployment.md").read_text()
    values = yaml.safe_load(guide.split("```yaml\n")[1].split("```")[0])
    return render_chart([LEAST, MOST, *without, {**values, "pool": POOL}])


@pytest.fixture(scope="module")
def least(charts: tuple[list[str], list[Any]]) -> dict[str, dict[str, Any]]:
    return charts[1][0]


@pytest.fixture(scope="module")
def most(charts: tuple[list[str], list[Any]]) -> dict[str, dict[str, Any]]:
    return charts[1][1]


def pod(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return documents["Deployment"]["spec"]["template"]["spec"]


def gateway(documents: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return pod(documents)["containers"][0]


def environment(documents: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in gateway(documents)["env"]}


def read_document(document: dict[str, Any]) -> dict[str, Any]:
    """What Kubernetes reads of a document.

    Raises:
        msgspec.ValidationError: A field is missing, or of another type.
    """
    group, _, version = document["apiVersion"].rpartition("/")
    of = import_module(f"lightkube.models.{group.partition('.')[0] or 'core'}_{version}")
    return getattr(of, document["kind"]).from_dict(document).to_dict()


def test_kubernetes_knows_every_field(
    charts: tuple[list[str], list[Any]], least: dict[str, Any], most: dict[str, Any]
) -> None:
    assert charts[0] == []
    assert least.keys() == {
        *("ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"),
    }
    assert most.keys() - least.keys() == {
        *("HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"),
    }
    for document in (*least.values(), *most.values()):
        if not document["apiVersion"].startswith("monitoring.coreos.com"):
            assert read_document(document) == document


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_named(charts: tuple[list[str], list[Any]], name: str) -> None:
    error = charts[1][2 + NEEDED.index(name)]
    assert f"{name}" in error
    assert "needed" in error


def test_the_guides_values_are_enough(charts: tuple[list[str], list[Any]]) -> None:
    assert gateway(charts[1][-1])["args"][0] == "/router"


def test_pods_may_write_only_to_their_volumes(most: dict[str, Any]) -> None:
    spec = pod(most)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    containers = [*spec["containers"], *spec["initContainers"]]
    assert len(containers) == 2
    for container in containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    writable = {m["mountPath"] for m in gateway(most)["volumeMounts"] if "readOnly" not in m}
    assert writable == {"/tmp", "/var/cache/prefill-router", "/var/lib/prefill-router"}


def test_probes_ask_what_the_gateway_answers_by_the_pods_address(least: dict[str, Any]) -> None:
    container = gateway(least)
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600  # the encoder's limit
    names = HostNames(
        ListenSettings(
            host=environment(least)["PREFILL_ROUTER_LISTEN__HOST"],
            hosts=json.loads(environment(least)["PREFILL_ROUTER_LISTEN__HOSTS"]),
        )
    )
    for host in (b"10.1.2.3:8080", b"[fd00::1]:8080", b"demo-prefill-router.prod.svc:80"):
        assert names.answer_to(host)
    assert not names.answer_to(b"elsewhere.example")


@pytest.mark.parametrize("case", ["least", "most"])
def test_a_pod_has_time_to_drain(case: str, request: pytest.FixtureRequest) -> None:
    documents = request.getfixturevalue(case)
    variables = environment(documents)
    seconds = [
        float(variables[f"PREFILL_ROUTER_LISTEN__{n}_SECONDS"]) for n in ("UNREADY", "DRAIN")
    ]
    assert pod(documents)["terminationGracePeriodSeconds"] == sum(seconds) + 20


def test_its_variables_are_settings(least: dict[str, Any], most: dict[str, Any]) -> None:
    settings = read_settings(None, environment=environment(most))
    assert settings.listen.hosts[-1] == "gateway.example"
    assert settings.listen.drain_seconds == 300
    assert settings.receipts.url == "postgresql://router@db/router"
    assert settings.shared.url == "postgresql://router@db/shared"
    assert "PREFILL_ROUTER_SHARED__URL" not in environment(least)
    assert pod(least)["enableServiceLinks"] is False  # or PREFILL_ROUTER_PORT would be one


def test_files_arrive_as_they_were_given(most: dict[str, Any]) -> None:
    assert most["ConfigMap"]["data"] == {"pool.yaml": POOL, "gateway.yaml": MOST["config"]}


def test_a_changed_file_starts_new_pods(least: dict[str, Any], most: dict[str, Any]) -> None:
    sums = [
        documents["Deployment"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        for documents in (least, most)
    ]
    assert len(set(sums)) == 2


def test_the_number_of_pods_is_the_autoscalers(least: dict[str, Any], most: dict[str, Any]) -> None:
    assert least["Deployment"]["spec"]["replicas"] == 2
    assert "replicas" not in most["Deployment"]["spec"]
    assert (
        most["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == (most["Deployment"]["metadata"]["name"])
    )


def test_the_operators_rules_are_the_alerts(most: dict[str, Any]) -> None:
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert most["PrometheusRule"]["spec"] == alerts
    assert most["PrometheusRule"]["metadata"]["labels"]["release"] == "prometheus"
