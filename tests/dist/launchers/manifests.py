"""The pods that the controllers of Kubernetes, JobSet and Kubeflow Trainer make of a manifest, with their names and environments."""
import copy
import dataclasses
import re

import yaml

INDEX = "batch.kubernetes.io/job-completion-index"
TRAINER_PORT = 29500


@dataclasses.dataclass
class Pod:
    """The environment and command of a container of one pod."""
    hostname: str
    subdomain: str
    index: int
    spec: dict  # of the pod

    @property
    def container(self):
        return self.spec["containers"][0]


@dataclasses.dataclass
class Workload:
    pods: list
    backoff_limit: int  # failures of single pods that are made good
    max_restarts: int   # of all pods together, when that limit is reached


def read(path):
    """The objects of a file, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}


def job_pods(name, subdomain, spec):
    """The Job controller: names of hosts, and a variable after those of the manifest."""
    if spec["completionMode"] != "Indexed" or spec["completions"] != spec["parallelism"]:
        raise ValueError(f"{name}: ranks need an Indexed Job whose pods all run at a time")
    for index in range(spec["completions"]):
        pod = copy.deepcopy(spec["template"]["spec"])
        for container in pod["containers"]:
            container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX",
                                                    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}})
        yield Pod(f"{name}-{index}", subdomain, index, pod)


def of_job(objects):
    job, service = objects["Job"], objects["Service"]
    name, spec = job["metadata"]["name"], job["spec"]
    # Else no name of a pod would be known, or only those of pods that are ready.
    if service["spec"]["clusterIP"] != "None" or not service["spec"]["publishNotReadyAddresses"]:
        raise ValueError("the Service must be headless and publish addresses that are not ready")
    if service["spec"]["selector"] != {"batch.kubernetes.io/job-name": name}:
        raise ValueError("the Service selects other pods")
    if spec["template"]["spec"]["subdomain"] != service["metadata"]["name"]:
        raise ValueError("the subdomain of the pods is not the Service")
    return Workload(list(job_pods(name, service["metadata"]["name"], spec)), spec.get("backoffLimit", 6), 0)


def of_jobset(jobset):
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    network = spec.get("network", {})
    pods, limits = [], []
    for replicated in spec["replicatedJobs"]:
        for number in range(replicated.get("replicas", 1)):
            job = replicated["template"]["spec"]
            pods += job_pods(f"{name}-{replicated['name']}-{number}", network.get("subdomain", name), job)
            limits.append(job.get("backoffLimit", 6))
    return Workload(pods, max(limits), spec.get("failurePolicy", {}).get("maxRestarts", 0))


def of_trainjob(objects):
    """Trainer makes a JobSet of the name of the TrainJob. Its plugin "torch" sets PET_ variables if the TrainJob has a trainer."""
    job, runtime = objects["TrainJob"], objects["TrainingRuntime"]
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    reference = {"kind": "ClusterTrainingRuntime", **job["spec"]["runtimeRef"]}
    known = runtime["kind"], runtime["metadata"]["name"]
    if (reference["kind"], reference["name"]) != known or "torch" not in runtime["spec"]["mlPolicy"]:
        raise ValueError("the TrainJob has another runtime, or one without the policy torch")
    jobset = copy.deepcopy({"metadata": {"name": name}, "spec": runtime["spec"]["template"]["spec"]})
    for replicated in jobset["spec"]["replicatedJobs"]:
        template = replicated["template"]
        if template["metadata"]["labels"].get("trainer.kubeflow.org/trainjob-ancestor-step") != "trainer":
            continue
        spec = template["spec"]
        spec.update(completionMode="Indexed", completions=trainer["numNodes"], parallelism=trainer["numNodes"])
        node = next(each for each in spec["template"]["spec"]["containers"] if each["name"] == "node")
        for given, field in (("image", "image"), ("command", "command"), ("args", "args"), ("resourcesPerNode", "resources")):
            if given in trainer:
                node[field] = trainer[given]
        node["env"] = node.get("env", []) + trainer.get("env", []) + [
            {"name": "PET_NNODES", "value": str(trainer["numNodes"])},
            {"name": "PET_NPROC_PER_NODE", "value": str(trainer["numProcPerNode"])},
            {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}},
            {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "PET_MASTER_PORT", "value": str(TRAINER_PORT)}]
    return of_jobset(jobset)


def of(path, change=None):
    """The workload of a file. change(objects) may alter the objects first, as a user would with an editor."""
    objects = read(path)
    if change:
        change(objects)
    if "TrainJob" in objects:
        return of_trainjob(objects)
    return of_jobset(objects["JobSet"]) if "JobSet" in objects else of_job(objects)


def expanded(text, environment):
    """$(NAME) of a command, an argument or a value. $$ is one $. Names that are not known stay."""
    def value(match):
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])
    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", value, text)


def environment_of(pod, secrets):
    """The variables of the manifest. secrets: {name: {key: value}}; KeyError where there is none."""
    environment = {}
    for variable in pod.container.get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            if INDEX not in source["fieldRef"]["fieldPath"]:
                raise ValueError(f"{variable['name']}: {source} is not simulated")
            value = str(pod.index)
        else:
            value = expanded(variable.get("value", ""), environment)
        environment[variable["name"]] = value
    return environment


def command_of(pod, entrypoint, environment):
    """The container's command line. entrypoint: the image's."""
    words = pod.container.get("command", entrypoint) + pod.container.get("args", [])
    return [expanded(word, environment) for word in words]
