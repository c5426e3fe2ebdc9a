#!/usr/bin/env python3
"""The Maven repository in an installed tree: its files, the pom, what is in the jars, and that Maven takes the jar from there.

    maven_test.py PREFIX VERSION SCRATCH
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree
import zipfile

PREFIX, VERSION = pathlib.Path(sys.argv[1]), sys.argv[2]
SCRATCH = pathlib.Path(sys.argv[3])
REPOSITORY = PREFIX / "share/maven-repo"
FOLDER = REPOSITORY / "org/libddp/libddp" / VERSION
NAME = f"libddp-{VERSION}"
POM = "{http://maven.apache.org/POM/4.0.0}"

# Without a plugin Maven resolves no dependencies, but it resolves its own extensions, before anything else.
EXTENSIONS = f"""<extensions>
  <extension><groupId>org.libddp</groupId><artifactId>libddp</artifactId><version>{VERSION}</version></extension>
</extensions>
"""
SETTINGS = f"""<settings>
  <localRepository>{SCRATCH}/local</localRepository>
  <profiles><profile>
    <id>installed</id>
    <pluginRepositories><pluginRepository><id>installed</id><url>{REPOSITORY.as_uri()}</url></pluginRepository></pluginRepositories>
  </profile></profiles>
  <activeProfiles><activeProfile>installed</activeProfile></activeProfiles>
</settings>
"""
PROJECT = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>user</groupId><artifactId>trainer</artifactId><version>1</version><packaging>pom</packaging>
</project>
"""


def names(jar):
    with zipfile.ZipFile(FOLDER / jar) as archive:
        return set(archive.namelist())


class Maven(unittest.TestCase):
    def test_files_with_checksums(self):
        files = {f"{NAME}{end}" for end in (".pom", ".jar", "-sources.jar", "-javadoc.jar")}
        self.assertEqual({each.name for each in FOLDER.iterdir()}, files | {f"{file}.sha1" for file in files})
        for file in files:
            self.assertEqual((FOLDER / f"{file}.sha1").read_text(), hashlib.sha1((FOLDER / file).read_bytes()).hexdigest())
        self.assertEqual((FOLDER / f"{NAME}.jar").read_bytes(), (PREFIX / "share/java/libddp.jar").read_bytes())

    def test_pom(self):
        project = xml.etree.ElementTree.parse(FOLDER / f"{NAME}.pom").getroot()
        self.assertEqual(project.tag, f"{POM}project")
        found = {each.tag.removeprefix(POM): each.text for each in project}
        self.assertEqual([found[part] for part in ("groupId", "artifactId", "version", "packaging", "name")],
                         ["org.libddp", "libddp", VERSION, "jar", "libddp"])
        self.assertTrue(found["description"])
        self.assertEqual(project.findtext(f"{POM}licenses/{POM}license/{POM}name"), "Apache-2.0")
        self.assertNotIn("dependencies", found)

    def test_sources_of_every_class(self):
        classes = {name.removesuffix(".class").split("$")[0] for name in names(f"{NAME}.jar") if name.endswith(".class")}
        sources = {name.removesuffix(".java") for name in names(f"{NAME}-sources.jar") if name.endswith(".java")}
        self.assertIn("org/libddp/Context", classes)
        self.assertEqual(classes, sources - {"org/libddp/package-info"})

    def test_pages_of_public_classes(self):
        pages = names(f"{NAME}-javadoc.jar")
        for page in ("index.html", "org/libddp/package-summary.html", "org/libddp/Context.html", "org/libddp/Context.Rows.html"):
            self.assertIn(page, pages)
        self.assertEqual([page for page in pages if page.startswith(("org/libddp/ddp", "org/libddp/Handle"))], [])

    def test_maven_takes_the_jar(self):
        maven = shutil.which("mvn")
        if not maven:
            self.skipTest("there is no mvn")
        shutil.rmtree(SCRATCH, ignore_errors=True)
        (SCRATCH / ".mvn").mkdir(parents=True)
        (SCRATCH / ".mvn/extensions.xml").write_text(EXTENSIONS)
        (SCRATCH / "settings.xml").write_text(SETTINGS)
        (SCRATCH / "pom.xml").write_text(PROJECT)
        run = subprocess.run([maven, "--batch-mode", "--offline", "--strict-checksums", "-Daether.offline.protocols=file",
                              "--settings", "settings.xml", "validate"], cwd=SCRATCH, env=dict(os.environ, HOME=str(SCRATCH)),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertNotIn("WARNING", run.stdout)
        taken = SCRATCH / "local/org/libddp/libddp" / VERSION / f"{NAME}.jar"
        self.assertEqual(taken.read_bytes(), (FOLDER / f"{NAME}.jar").read_bytes())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
