"""What is installed: `cmake --install`, the Debian package, units of systemd, manual pages, completion, manifests; each by its own
checker where that is installed. tests/fresh/package installs the package on a bare machine."""

import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
import yaml

import real

DEPLOY = real.ROOT / "deploy"
BUILD = real.SLUICE.parent
VERSION = re.search(r'SL_VERSION "(.*)"', (real.ROOT / "base" / "version.h").read_text())[1]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def run(*command, **kw):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=240, check=False, **kw)
    assert r.returncode == 0, f"{command}: {r.stdout}{r.stderr}"
    return r.stdout


def need(program):
    if not real.have(program):
        pytest.skip(f"{program} is not installed")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package, unpacked; its control files are in DEBIAN."""
    need("dpkg-shlibdeps")
    out = tmp_path_factory.mktemp("deb")
    run("cpack", "-G", "DEB", "-B", out, cwd=BUILD)
    (deb,) = out.glob("*.deb")
    run("dpkg-deb", "-R", deb, out / "root")
    return deb, out / "root"


def commands():
    return [line.split("\t")[0] for line in run(real.SLUICE, "--help=commands").splitlines()]


def test_everything_is_installed(installed):
    assert f"sluice {VERSION}" in run(installed / "bin" / "sluice", "version")
    for path in ("etc/sluice/sluice.yaml", "share/bash-completion/completions/sluice", "share/zsh/vendor-completions/_sluice",
                 "share/fish/vendor_completions.d/sluice.fish", "share/sluice/grafana/sluice.json", "share/sluice/prometheus-rules.yml",
                 "share/sluice/kubernetes/router.yaml", "share/sluice/slurm/sluice.sbatch", "share/sluice/container/Containerfile",
                 "lib/systemd/system/sluice-router.service", "lib/systemd/system/sluice-decode@.service", "share/doc/sluice/operations.md",
                 "share/doc/sluice/examples/reference.yaml", "share/doc/sluice/copyright", "share/sluice/models/facts-dsa/config.json"):
        assert (installed / path).is_file(), path
    assert {p.stem for p in (installed / "share/man/man1").iterdir()} == {"sluice", *(f"sluice-{c}" for c in commands())}


def test_the_installed_configuration_starts(installed):
    run(installed / "bin" / "sluice", "config", "check", installed / "etc/sluice/sluice.yaml", "--elsewhere",
        "--set", f"model.path={installed}/share/sluice/models/facts-dsa")


def test_manual_pages_are_well_formed(installed):
    need("mandoc")
    for page in sorted((installed / "share/man/man1").iterdir()):
        r = subprocess.run(["mandoc", "-T", "lint", "-W", "error", page], capture_output=True, text=True, timeout=60, check=False)
        assert r.returncode == 0, r.stdout


def completed(installed, *words):
    """What bash offers after these words, of which the last one is being written."""
    script = f"""source {installed}/share/bash-completion/completions/sluice
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluice; printf '%s\\n' "${{COMPREPLY[@]}}\""""
    return run("bash", "-c", script, "bash", installed / "bin" / "sluice", *words).split()


@pytest.mark.parametrize("words,offered", [
    (("pl",), ["plan"]), (("c",), ["calibrate", "config", "cache"]), (("cache", "st"), ["stat"]), (("cache", "stat", "--rou"), ["--router"]),
    (("generate", "--mode", ""), ["resident", "hierarchical"]), (("plan", "--gpu"), ["--gpu-bytes"]), (("bench", "ti"), ["tier"]),
    (("config", "ch"), ["check"]), (("plan", "--hel"), ["--help"])], ids=" ".join)
def test_bash_completes(installed, words, offered):
    assert completed(installed, *words) == offered


def test_the_package(package):
    deb, root = package
    control = (root / "DEBIAN" / "control").read_text()
    assert f"Version: {VERSION}\n" in control and "libucx0" in control and "libmicrohttpd12" in control
    assert (root / "DEBIAN" / "conffiles").read_text() == "/etc/sluice/sluice.yaml\n"
    assert (root / "etc/sluice/sluice.yaml").is_file() and not (root / "usr/etc").exists()
    for name in ("postinst", "prerm", "postrm"):
        assert stat.S_IMODE((root / "DEBIAN" / name).stat().st_mode) == 0o755
    assert deb.name == f"sluice_{VERSION}_amd64.deb" or "amd64" not in deb.name


def units():
    return sorted((DEPLOY / "systemd").iterdir())


@pytest.mark.parametrize("unit", units(), ids=lambda p: p.name)
def test_units(installed, unit, tmp_path):
    text = unit.read_text()
    for line in re.findall(r"^ExecStart=/usr/bin/sluice (.*)", text, re.MULTILINE):
        words = line.replace("%i", "0").replace(" $SLUICE_ARGS", "").replace("/etc/", f"{installed}/etc/").split()
        flags = {line.split("\t")[0] for line in run(installed / "bin" / "sluice", words[0], "--help=flags").splitlines()}
        assert {w for w in words if w.startswith("--")} <= flags
    if unit.suffix == ".service":
        for hard in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=\n", "SystemCallFilter=@system-service",
                     "LimitMEMLOCK=infinity", "User=sluice"):
            assert hard in text, hard
    need("systemd-analyze")
    for u in units():  # the program's path is that of the package
        (tmp_path / u.name).write_text(u.read_text().replace("/usr/bin/sluice", str(installed / "bin" / "sluice")))
    name = unit.name.replace("@", "@0")
    if "@" in unit.name:
        shutil.copy(tmp_path / unit.name, tmp_path / name)
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == 0 and unit.name not in r.stderr, r.stderr


def documents():
    return [(path.name, d) for path in MANIFESTS for d in yaml.safe_load_all(path.read_text())]


def test_manifests_are_valid():
    validate = pytest.importorskip("kubernetes_validate")
    for name, d in documents():
        validate.validate(d, "1.30", strict=True)
        assert d["metadata"].get("namespace") == "sluice", name


def test_manifests_keep_a_cluster_alive():
    found = {(d["kind"], d["metadata"]["name"]): d for _, d in documents()}
    workloads = [d for d in found.values() if d["kind"] in ("Deployment", "StatefulSet")]
    assert {d["metadata"]["name"] for d in workloads} == {"sluice-router", "sluice-prefill", "sluice-decode"}
    for d in workloads:
        name, pod = d["metadata"]["name"], d["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        assert "podAntiAffinity" in pod["spec"]["affinity"] and "preStop" in container["lifecycle"], name
        assert {"startupProbe", "livenessProbe"} <= set(container), name
        assert pod["spec"]["securityContext"]["runAsNonRoot"] and not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["image"] == f"sluice:{VERSION}", "the version has one place; the manifests follow it"
        budget = found["PodDisruptionBudget", name]["spec"]
        assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "readinessProbe" in found["StatefulSet", "sluice-router"]["spec"]["template"]["spec"]["containers"][0]
    assert found["Service", "sluice"]["spec"]["selector"].items() <= \
        found["StatefulSet", "sluice-router"]["spec"]["template"]["metadata"]["labels"].items()


def test_the_configuration_of_the_manifests(tmp_path):
    """Its keys exist, and its routers are the pods of the StatefulSet."""
    (config,) = [d for _, d in documents() if d["kind"] == "ConfigMap"]
    for name in ("secret", "keys"):
        (tmp_path / name).write_text("0123456789abcdef0123456789abcdef\n" if name == "secret" else f"a sha256={'0' * 64} admin\n")
    (tmp_path / "sluice.yaml").write_text(config["data"]["sluice.yaml"].replace("/secret/secret", f"{tmp_path}/secret"))
    shown = yaml.safe_load(run(real.SLUICE, "config", "--config", tmp_path / "sluice.yaml"))
    assert [r.split(":")[0] for r in shown["cluster"]["routers"]] == [f"sluice-router-{n}.sluice-routers" for n in (0, 1)]


def run_by(d):
    """Every list of words that a pod of this manifest would run: containers, probes, hooks."""
    if isinstance(d, dict):
        for key, v in d.items():
            if key == "command":
                yield [*v, *d.get("args", [])]
            else:
                yield from run_by(v)
    elif isinstance(d, list):
        for v in d:
            yield from run_by(v)


def shell_of(words):
    return words[2] if words[0] == "/bin/sh" and words[1] == "-c" else None


def test_commands_of_the_manifests():
    """Their flags are those of the program."""
    seen = 0
    for name, d in documents():
        for words in run_by(d):
            words = shlex.split((shell_of(words) or shlex.join(words)).split("exec ")[-1])
            if words[0] != "sluice":
                continue
            seen += 1
            flags = {line.split("\t")[0] for line in run(real.SLUICE, words[1], "--help=flags").splitlines()}
            assert {w for w in words if w.startswith("--")} <= flags, name
    assert seen == 3


def test_scripts():
    """Every file of deploy/ that a shell runs, and what manifests say to one."""
    need("shellcheck")
    files = [p for p in DEPLOY.rglob("*") if p.is_file() and re.match(rb"#!.*\b(ba)?sh\n", p.read_bytes())]
    assert {"postinst", "prerm", "postrm", "sluice.sbatch", "quickstart"} <= {p.name for p in files}
    run("shellcheck", DEPLOY / "completion" / "sluice.bash", real.ROOT / "tests" / "fresh" / "package", *files)
    lines = [shell_of(words) for _, d in documents() for words in run_by(d) if shell_of(words)]
    assert any("exec sluice router" in line for line in lines)
    for line in lines:  # HOSTNAME is set by what runs containers
        run("shellcheck", "-s", "sh", "-e", "SC3028", "-", input=line + "\n")


def test_container_file():
    """hadolint, which also gives the commands of RUN to shellcheck."""
    lint = shutil.which("hadolint", path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if not lint:
        pytest.skip("hadolint is not installed")
    run(lint, "--no-color", "--failure-threshold", "style", DEPLOY / "container" / "Containerfile")


def test_one_version():
    """Files that must name the version name the one of base/version.h."""
    places = [*MANIFESTS, DEPLOY / "container" / "Containerfile"]
    named = {v for p in places for v in re.findall(r"sluice:(\d+\.\d+\.\d+)", pathlib.Path(p).read_text())}
    assert named == {VERSION}
    assert f"## {VERSION}" in (real.ROOT / "CHANGELOG.md").read_text()
