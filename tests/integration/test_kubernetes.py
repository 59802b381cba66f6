"""deploy/kubernetes: the manifests comply with Kubernetes' schemas and standard; pods run in Podman."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy_page import blocks
from tests.needs import give_up
from tests.workplace import HEALTHCHECK, TAG, key, load
from torchkiln.util.places import ROOT

KIT, TRAIN = ROOT / "deploy/kubernetes", ROOT / "deploy/train"
OLDEST, NEWEST = "1.28", "1.37"  # Indexed Jobs have been stable since 1.24
IMAGE = f"localhost/pytorch-cuda:{TAG}"  # as Podman names it
TOKEN = "a-token-that-is-long-enough"
LISTENING = "Server listening on 0.0.0.0 port 2222"

# Run in the pod: prints JupyterLab's answer to each token.
ASK = """
import sys, urllib.request
for token in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:8888/api/contents?token={token}").status)
    except OSError as error:
        print(error)
"""

Document = dict[str, Any]
needs_kubectl = pytest.mark.skipif(
    not shutil.which("kubectl"), reason="no kubectl: apt-get install kubernetes-client"
)


def documents() -> dict[str, Document]:
    """Each manifest by its path, without the files of kustomize."""
    files = [file for file in sorted(KIT.rglob("*.yaml")) if file.name != "kustomization.yaml"]
    return {str(file.relative_to(KIT)): yaml.safe_load(file.read_text()) for file in files}


DOCUMENTS = documents()
TEMPLATES = {
    name: found["spec"]["template"]
    for name, found in DOCUMENTS.items()
    if "template" in found.get("spec", {})
}


# --- the manifests ---------------------------------------------------------------------------------


def test_there_are_five_kinds() -> None:
    """If you add a manifest, add a test for it to this file."""
    assert {name: found["kind"] for name, found in DOCUMENTS.items()} == {
        "namespace.yaml": "Namespace",
        "lab/statefulset.yaml": "StatefulSet",
        "lab/service.yaml": "Service",
        "job/job.yaml": "Job",
        "nodes/job.yaml": "Job",
        "nodes/service.yaml": "Service",
    }


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_manifest_has_kubernetes_form(name: str, version: str) -> None:
    """An unknown field is an error."""
    kubernetes_validate.validate(DOCUMENTS[name], version, strict=True)


def test_an_unknown_field_would_be_found() -> None:
    broken = {**DOCUMENTS["job/job.yaml"], "spec": {**DOCUMENTS["job/job.yaml"]["spec"], "completion": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="completion"):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_pod_complies_with_the_restricted_standard(name: str) -> None:
    """Each pod complies with the standard in the namespace's label, and has a read-only root file system."""
    pod = TEMPLATES[name]["spec"]
    (container,) = pod["containers"]
    own = container["securityContext"]
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}

    assert DOCUMENTS["namespace.yaml"]["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "restricted"
    }
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"] > 0) == (True, True)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (own["allowPrivilegeEscalation"], own["capabilities"]) == (False, {"drop": ["ALL"]})
    assert own["readOnlyRootFilesystem"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_pod_keeps_the_entrypoint_and_has_gpus_and_shared_memory(name: str) -> None:
    (container,) = TEMPLATES[name]["spec"]["containers"]
    volumes = {volume["name"]: volume for volume in TEMPLATES[name]["spec"]["volumes"]}

    assert "command" not in container
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"]
        == {"lab": 1, "job": 2, "nodes": 8}[name.partition("/")[0]]
    )
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_processes_of_all_nodes_meet() -> None:
    """The rendezvous address is the first pod's DNS name; Job and torchrun have the same number of nodes."""
    job, service = DOCUMENTS["nodes/job.yaml"], DOCUMENTS["nodes/service.yaml"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = dict(word.removeprefix("--").split("=", 1) for word in container["args"] if "=" in word)

    assert job["spec"]["completionMode"] == "Indexed"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    assert options == {
        "nnodes": str(job["spec"]["completions"]),
        "node-rank": "$(JOB_COMPLETION_INDEX)",
        "nproc-per-node": str(container["resources"]["limits"]["nvidia.com/gpu"]),
        "master-addr": f"{job['metadata']['name']}-0.{pod['subdomain']}",
        "master-port": str(container["ports"][0]["containerPort"]),
    }
    assert job["spec"]["parallelism"] == job["spec"]["completions"]


@needs_kubectl
@pytest.mark.parametrize("folder", ["lab", "job", "nodes"])
def test_kustomize_sets_namespace_image_and_script(folder: str) -> None:
    """The documents that `kubectl apply -k` would send also comply with the schemas."""
    argv = ["kubectl", "kustomize", str(KIT / folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = list(yaml.safe_load_all(done.stdout))
    pods = [
        document["spec"]["template"]["spec"] for document in found if "template" in document.get("spec", {})
    ]
    maps = [document for document in found if document["kind"] == "ConfigMap"]

    for document in found:
        kubernetes_validate.validate(document, NEWEST, strict=True)
    assert {document["metadata"]["namespace"] for document in found} == {"torchkiln"}
    assert [pod["containers"][0]["image"] for pod in pods] == ["registry.example/team/pytorch-cuda:v2.7"]
    mounted = [volume["configMap"]["name"] for volume in pods[0]["volumes"] if "configMap" in volume]
    assert mounted == [document["metadata"]["name"] for document in maps]
    assert [document["data"] for document in maps] == [{"train.py": (TRAIN / "train.py").read_text()}] * len(
        maps
    )


@needs_kubectl
def test_the_pages_commands(tmp_path: Path) -> None:
    """Commands that need no cluster are run; the objects that the other commands name exist."""
    (script,) = blocks("Kubernetes")
    lines = [shlex.split(line) for line in script.splitlines()]
    applied = [words[-1] for words in lines if words[1] == "apply"]
    (create,) = (line for line in script.splitlines() if " create secret " in line)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519.pub").write_text("a key\n")
    argv = ["sh", "-euc", f"{create} --dry-run=client --output=json"]
    environ = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    secret = json.loads(done.stdout)
    lab = TEMPLATES["lab/statefulset.yaml"]["spec"]
    reference = next(v["valueFrom"]["secretKeyRef"] for v in lab["containers"][0]["env"] if "valueFrom" in v)
    (mounted,) = (volume["secret"] for volume in lab["volumes"] if "secret" in volume)

    assert [(ROOT / place).exists() for place in applied] == [True] * 4
    assert {words[0] for words in lines} == {"kubectl"}
    assert secret["metadata"]["name"] == reference["name"] == mounted["secretName"]
    assert set(secret["data"]) == {reference["key"], mounted["items"][0]["key"]}
    objects = {f"{found['kind'].lower()}/{found['metadata']['name']}" for found in DOCUMENTS.values()}
    named = re.findall(r"(?:statefulset|job)/[a-z-]+", script.replace("deploy/kubernetes/job", ""))
    assert set(named) <= objects
    (label,) = re.findall(r"--selector (\S+)", script)
    labels = TEMPLATES["nodes/job.yaml"]["metadata"]["labels"]
    assert label in [f"{name}={value}" for name, value in labels.items()]
    ports = {str(port["containerPort"]) for port in lab["containers"][0]["ports"]}
    assert next(set(words[-2:]) for words in lines if "port-forward" in words) == ports


# --- pods in Podman --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pods:
    """Runs pods from templates, because Podman 4.3 supports Pods, but no Jobs or StatefulSets."""

    environ: Mapping[str, str]

    def podman(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """`podman WORDS` in the tests' own service."""
        argv = ["podman", "--url", self.environ["DOCKER_HOST"], *words]
        # Podman's client requires a file in the folder of Docker's client.
        environ = {name: value for name, value in self.environ.items() if name != "DOCKER_CONFIG"}
        return subprocess.run(argv, env=environ, input=text, capture_output=True, text=True, check=False)

    def play(self, name: str, *others: Document, args: list[str] | None = None) -> str:
        """Play the pod of manifest *name* with *others*; returns its container's name."""
        spec = json.loads(json.dumps(TEMPLATES[name]["spec"]))
        (container,) = spec["containers"]
        container |= {"image": IMAGE} | ({"args": args} if args else {})
        secrets = {other["metadata"]["name"]: other["data"] for other in others if other["kind"] == "Secret"}
        for variable in container.get("env", ()):
            if reference := variable.pop("valueFrom", {}).get("secretKeyRef"):
                # Podman 4.3 does not decode the base64 of a Secret.
                variable["value"] = b64decode(secrets[reference["name"]][reference["key"]]).decode()
        for volume in spec["volumes"]:
            if "secret" in volume:
                volume["secret"]["optional"] = False  # the default, which Podman 4.3 does not know
        claims = [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}
            for claim in DOCUMENTS[name]["spec"].get("volumeClaimTemplates", ())
        ]
        for claim in claims:
            own = claim["metadata"]["name"]
            spec["volumes"].append({"name": own, "persistentVolumeClaim": {"claimName": own}})
        metadata = {**TEMPLATES[name]["metadata"], "name": name.partition("/")[0]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        text = yaml.safe_dump_all([*others, *claims, pod])
        done = self.podman("kube", "play", "-", text=text)
        assert done.returncode == 0, done.stderr
        return f"{metadata['name']}-{container['name']}"

    def log(self, container: str) -> str:
        done = self.podman("logs", container)
        return done.stdout + done.stderr

    def inside(self, container: str, *command: str) -> subprocess.CompletedProcess[str]:
        return self.podman("exec", container, *command)


@pytest.fixture(scope="module")
def pods(podman: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Podman with the small image."""
    if not shutil.which("catatonit"):
        give_up("catatonit, the first process of a pod, is not installed: apt-get install catatonit")
    load(tmp_path_factory.mktemp("image"), podman)
    found = Pods(environ=podman)
    yield found
    found.podman("pod", "rm", "--all", "--force")


@pytest.mark.network  # the small image's wheels, and if it is not cached, the base
def test_the_lab_serves_under_the_restricted_standard(pods: Pods, tmp_path: Path) -> None:
    """Its token and SSH work; the pod's user can write to the volumes, and everything else is read-only."""
    data = {"token": TOKEN, "ssh-public-key": key(tmp_path)[1]}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "lab"},
        "data": {name: b64encode(value.encode()).decode() for name, value in data.items()},
    }
    container = pods.play("lab/statefulset.yaml", secret)
    end = time.monotonic() + 300
    # The health check does not wait for sshd.
    while (done := pods.inside(container, HEALTHCHECK)).returncode or LISTENING not in pods.log(container):
        assert time.monotonic() < end, (done.stderr, pods.log(container))
        time.sleep(0.5)
    token = pods.inside(container, "cat", "/secrets/token").stdout  # in base64, see above
    look = (
        "id -u; touch /workspace/a /tmp/b /dev/shm/c && echo written; touch /d 2>&1;"
        f" python -c '{ASK}' {token} wrong; grep -E 'NoNewPrivs|CapBnd' /proc/1/status"
    )
    lines = pods.inside(container, "sh", "-c", look).stdout.splitlines()
    host_keys = pods.inside(container, "ls", "/workspace/.ssh-host-keys").stdout.split()

    assert "ssh_host_ed25519_key" in host_keys
    assert lines[:2] == ["12345", "written"]
    assert "Read-only file system" in lines[2]
    assert lines[3:5] == ["200", "HTTP Error 403: Forbidden"]
    assert lines[5:] == ["CapBnd:\t0000000000000000", "NoNewPrivs:\t1"]


@pytest.mark.network  # as above
@pytest.mark.parametrize("name", ["job/job.yaml", "nodes/job.yaml"])
def test_a_job_finds_its_script(pods: Pods, name: str) -> None:
    """The script only prints its help, without torchrun, because the small image has no torch."""
    script = (TRAIN / "train.py").read_text()
    train = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "train"},
        "data": {"train.py": script},
    }
    container = pods.play(name, train, args=["python", "/train/train.py", "--help"])

    assert pods.podman("wait", container).stdout == "0\n"
    assert "Fit a line with DistributedDataParallel" in pods.podman("logs", container).stdout
