"""Runs the test stages and sums them up. Called by tests/run, which explains the options.

Stages consist of steps, and steps run in six lanes concurrently, because many tests mostly wait. The clusters of the e2e tests have
the highest priority, in three lanes; unit tests come next, in one lane as they are and under AddressSanitizer, in one under
ThreadSanitizer; compilers and fuzzers come last (nice values 0, 0, 0, 5, 5, 10). A step is a function that returns a Tally. Long commands write to build/test-logs/STAGE*.log, while progress lines show that they still run.
Unit tests are counted by the checks that libcheck reports, all others by their own reports. Time limits only end programs that
hang and do not judge speed: they are many times longer than a slow machine needs.

A test that fails is run once more at the end, when nothing else runs: six lanes on two processors can delay a process by seconds,
and a limit that expired then says nothing about the product. If it passes alone, the summary shows it as UNSTEADY, with the
output of its failure. What a sanitizer reported and what crashed is never repeated, nor is anything when many tests failed.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

from steps import HERE, ROOT, RUNNING, STOPPING, SHOWN_LINES, Tally, end_of, kill_group, run, tail

LOGS = ROOT / "build" / "test-logs"
JOBS = len(os.sched_getaffinity(0))
FUZZ_SECONDS = int(os.environ.get("SL_FUZZ_SECONDS", "3"))
STEP_SECONDS = 2400  # a build or a test step that takes longer hangs
TELLING = re.compile(r":[FE]:|ERROR|WARNING: Thread|panic|runtime error")  # shown although it is far from the end of the output
MOST_REPEATED = 8  # more failures than these are no accident
CHECK_LINE = re.compile(r"\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)")


def not_under_tsan():
    """Names of tests and why ThreadSanitizer does not run them; the file says how it is written."""
    reasons, reason = {}, ""
    for line in (ROOT / "tests" / "not-under-tsan.txt").read_text().splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif not line.startswith("#"):
            reasons.update({name: reason for name in line.split()})
    return reasons


# Left out of a sanitizer's run because it cannot find anything there or would take minutes.
KILLS = "kills dozens of writers, minutes under a sanitizer; the same code runs there in test_endings"
TWICE = "the workers of test_*_direct with another way to ship; that way runs there in test_cluster_gpu"
DIRECT = "the workers of the tests without _direct; that way runs there in test_cluster_direct, test_faults_direct and test_direct"
TIMES = "compares processor times, which a sanitizer changes; the parsers run there in tests of their own"
SAME = "a program for GPUs; its engine and strategies run there in test_engine and the tests of the strategies"
LEFT_OUT = {"asan": {"test_writer_dies": KILLS, "test_cost": TIMES, **dict.fromkeys(("test_soak_gpu", "test_routers_gpu", "test_faults_gpu"), TWICE),
                     **dict.fromkeys(("test_soak_direct", "test_routers_direct"), DIRECT),
                     **dict.fromkeys(("equal", "equal_gqa"), SAME)},
            "tsan": not_under_tsan()}
LONG = "among the longest, or with another way to ship; the whole run has it"
LEFT_OUT_QUICK = dict.fromkeys((  # added to LEFT_OUT["unit"] by --quick
    "test_writer_dies", "test_models", "test_cost", "test_several", "test_engine_discrete", "test_group", "comm_conformance_cpu", "comm_conformance_sockets",
    "test_faults_gpu", "test_faults_direct", "test_routers_gpu", "test_soak_gpu", "test_soak_direct", "test_cluster_gpu",
    "test_cluster_direct", "test_tier", "test_bench", "test_simulate", "test_strategies", "equal",
    "equal_gqa"), LONG)

MANY = 9     # tests left out for one reason are counted and no longer named
SLOWEST = 8  # tests of a stage whose times the summary names

# Run there with less of the same: no path is left out.
SOAK = "test_soak: 120 requests where the release build makes 300"
SHORTER = {"unit": ["kernels_conformance_cpu: without the cases that are there for kernels a GPU takes at larger sizes (--large)"],
           "asan": [SOAK, "tests with many variants of a case (tests/unit/run_suite.h): two at most; of those that a program runs in many ways, a fifth",
                    "test_grammar_made: 6 grammars of a kind where the release build makes 40; test_chat_answers: every fifth or eleventh division",
                    "test_draft_cases: 12 cases where the release build takes 48",
                    "test_several: about 30 steps of each kind where the release build takes 130",
                    "test_engine: 60 steps of each model where the release build takes 1100 or 400, six streams of 190 tokens for ten of 260",
                    "test_group: 60 steps of each model where the release build takes 200 or 400",
                    "comm_conformance_cpu, comm_conformance_sockets: groups of one and three ranks",
                    "test_models: shorter streams; six models of eleven, one for each kind of rows and planes; spills with three, deaths with two",
                    "kernels_conformance_cpu: of the slices of a batch, the first, the last and halves"],
           "tsan": [SOAK, "tests with many variants of a case: as under asan",
                    "test_shipment, test_shipment_lease: of the four paths, the one with a thread of its own",
                    "comm_conformance_sockets: groups of two ranks, because ranks are processes and only threads of one process are watched"]}


def configure_and_build(preset, log, extra=(), targets=()):
    launchers = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    code = run(["cmake", "--preset", preset, *launchers, *extra], log, 600)
    wanted = ["--target", *targets] if targets else []
    return code or run(["cmake", "--build", "--preset", preset, "-j", JOBS, *wanted, "--", "-k", "0"], log, STEP_SECONDS)


def build_stage(preset, extra=(), targets=()):
    tally = Tally()
    log = LOGS / f"{preset}-build.log"
    log.unlink(missing_ok=True)
    if configure_and_build(preset, log, extra, targets) == 0:
        tally.passed += 1
    else:
        wanted = re.compile(r"error:|FAILED:|Error|undefined reference|multiple definition")
        errors = [line for line in log.read_text(errors="replace").splitlines() if wanted.search(line)]
        tally.fail(f"build of preset {preset} (see {log.relative_to(ROOT)})")
        tally.notes += ["        " + line[:200] for line in errors[:8]]
    return tally


def count_case(case, tally, stage, again):
    """One ctest test: its libcheck checks when it printed them, else the test itself."""
    name = case.get("name")
    output = (case.findtext("system-out") or "").rstrip()
    lines = [line for line in output.splitlines() if line.strip()]
    summaries = CHECK_LINE.findall(output)
    bad = sum(int(failures) + int(errors) for _, failures, errors in summaries)
    good = sum(int(checks) for checks, _, _ in summaries) - bad
    skipped = case.find("skipped")
    if skipped is not None and "SKIP_RETURN_CODE" in skipped.get("message", "") or case.get("status") == "disabled":
        tally.passed += good
        tally.skip(f"{stage}: {name}: {lines[-1].strip()[:160] if lines else 'no reason printed'}")
    elif case.get("status") == "run" and not bad and (good or not summaries):
        tally.passed += good or 1
    else:  # failed, timed out, crashed, could not be started, or ran no check at all
        tally.passed += good
        failure = case.find("failure")
        ending = end_of("\n".join([*lines, failure.get("message", "") if failure is not None else ""]))
        telling = end_of("\n".join(line for line in lines[:-SHOWN_LINES] if TELLING.search(line)))[:8]
        tally.doubt(f"{stage}: {name}", bad or 1, [*telling, "        [...]", *ending] if telling else ending, lambda: again(name))


def ctest(preset, stage, env=None, args=(), wrapper=()):
    tally = Tally()
    # libcheck's own limit is 4 s a case; a busy machine or a sanitizer is not a failure
    env = {"CK_TIMEOUT_MULTIPLIER": "30", **(env or {})}
    report = LOGS / f"{stage}.xml"
    report.unlink(missing_ok=True)
    # a test that computes takes two of these places, one that waits takes one (sl_test in cmake/sluice.cmake)
    run([*wrapper, "ctest", "--test-dir", f"build/{preset}", "-j", 2 * JOBS, "--timeout", 900, "--output-junit", report,
         "--test-output-size-passed", 200000, "--test-output-size-failed", 200000, "--test-output-truncation", "head",
         *args], LOGS / f"{stage}.log", STEP_SECONDS, env)
    if not report.exists():
        tally.fail(f"{stage}: ctest gave no report (see build/test-logs/{stage}.log)")
        return tally
    def again(name):
        return ctest(preset, f"{stage}-again", env, ["-R", f"^{re.escape(name)}$"], wrapper)

    cases = list(xml.etree.ElementTree.parse(report).getroot().iter("testcase"))
    for case in cases:
        count_case(case, tally, stage, again)
    if len(cases) > SLOWEST:
        slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:SLOWEST]
        tally.notes.append(f"slowest {stage}: " + ", ".join(f"{c.get('name')} {float(c.get('time', 0)):.0f} s" for c in slowest))
    return tally


def stage_deps():
    """The Python environment; tests/run has installed the packages before."""
    log = LOGS / "deps.log"
    tally = Tally()
    if os.environ.get("SL_RUN_DEPS", "passed").startswith("passed") and run(["scripts/install-deps"], log, STEP_SECONDS) == 0:
        tally.passed = 1
    else:
        tally.fail("dependencies could not be installed")
        tally.notes += tail(log)
    return tally


def stage_build():
    return build_stage("release")


def stage_checks():
    tally = Tally()
    for script in sorted((ROOT / "scripts").glob("check-*")):
        log = LOGS / f"{script.name}.log"
        log.unlink(missing_ok=True)
        if run([script], log, 900) == 0:
            tally.passed += 1
        else:
            tally.fail(f"checks: {script.name}")
            tally.notes += tail(log)
    return tally


def but_left_out(stage, preset, env=None, args=(), wrapper=()):
    """ctest without what LEFT_OUT names for the stage; every name must be that of a test."""
    left_out = LEFT_OUT.get(stage, {})
    listed = subprocess.run(["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"], cwd=ROOT, capture_output=True, check=False)
    known = {test["name"] for test in json.loads(listed.stdout or "{}").get("tests", ())}
    names = ["-E", "^(" + "|".join(left_out) + ")$"] if left_out else []
    tally = ctest(preset, stage, env, [*args, *names], wrapper)
    for name in sorted(set(left_out) - known):
        tally.fail(f"{stage}: {name} is left out, but there is no test of that name")
    for why in dict.fromkeys(left_out.values()):
        names = [name for name, reason in left_out.items() if reason == why]
        tally.skipped += len(names)
        tally.notes.append(f"skipped {stage}: {', '.join(names) if len(names) < MANY else f'{len(names)} tests'}: {why}")
    return tally


def stage_unit():
    tally = but_left_out("unit", "release")
    tally.notes += [f"shorter unit: {what}" for what in SHORTER["unit"]]
    return tally


def pytest(name, files):
    """One pytest process; its report counts."""
    tally = Tally()
    log, report = LOGS / f"e2e-{name}.log", LOGS / f"e2e-{name}.xml"
    log.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    code = run([".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", "-ra", "-v", "--durations=25", f"--junitxml={report}",
                "-o", "junit_logging=system-out", "-o", "junit_log_passing_tests=false", *files], log, STEP_SECONDS,
               {"SL_BUILD": "build/release", "SL_E2E_SHARES": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    if not report.exists():
        tally.fail(f"e2e: pytest gave no report (see {log.relative_to(ROOT)})")
        tally.notes += tail(log)
        return tally
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        name = f"e2e: {case.get('classname', '')}::{case.get('name')}"
        problem = case.find("failure") if case.find("failure") is not None else case.find("error")
        if problem is not None:
            test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            tally.doubt(f"{name}: {(problem.get('message') or '').splitlines()[0][:160] if problem.get('message') else ''}", 1,
                        end_of(problem.text or "") + end_of(case.findtext("system-out") or ""), lambda test=test: pytest("again", [test]))
        elif case.find("skipped") is not None:
            tally.skip(f"{name}: {case.find('skipped').get('message', '')[:160]}")
        else:
            tally.passed += 1
    if code not in (0, 1) and not tally.failed and not tally.doubtful:
        tally.fail(f"e2e: pytest ended with {code} (see {log.relative_to(ROOT)})")
    return tally


QUICKSTART = ROOT / "tests" / "e2e" / "test_quickstart.py"


def stage_quickstart():
    """Runs alone: the script asserts at its end that nothing new is in /dev/shm, so no other test may run concurrently."""
    return pytest("quickstart", [QUICKSTART])


CLUSTERS = 3  # processes of the clusters: they wait for timers more than two thirds of the time


def stage_e2e(part):
    """Every third file of a list that begins with the longest: they have the most tests, so each part takes about the same time."""
    files = sorted(set((ROOT / "tests" / "e2e").glob("test_*.py")) - {QUICKSTART}, key=lambda file: (-file.stat().st_size, file.name))
    return pytest(f"clusters-{part + 1}", files[part::CLUSTERS])


def stage_attack():
    """In a process of its own, after the clusters: both measure latencies, and each has fixtures of its own."""
    return pytest("attack", sorted((ROOT / "tests" / "attack").glob("test_*.py")))


def sanitized(preset, env, exclude, wrapper=()):
    tally = but_left_out(preset, preset, env, ["-LE", exclude], wrapper)
    tally.notes += [f"shorter {preset}: {what}" for what in SHORTER.get(preset, ())]
    return tally


def stage_asan():
    return sanitized("asan", {
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0"}, "nosan|noasan")


def stage_tsan():
    # gcc 12's runtime cannot place its shadow memory under much address randomisation
    personality = ["setarch", "-R"]
    works = subprocess.run([*personality, "true"], capture_output=True, check=False).returncode == 0
    return sanitized("tsan", {
        "TSAN_OPTIONS": f"suppressions={ROOT}/tests/tsan.supp:halt_on_error=0:exitcode=66:second_deadlock_stack=1"},
        "nosan|notsan", personality if works else ())


def fuzz_one(program):
    name = program.name.removeprefix("fuzz_")
    log = LOGS / f"{program.name}.log"
    log.unlink(missing_ok=True)
    found = ROOT / "build" / "fuzz-findings"
    found.mkdir(exist_ok=True)
    seeds = ROOT / "tests" / "fuzz" / "corpus" / name
    with tempfile.TemporaryDirectory() as corpus:
        code = run([program, f"-max_total_time={FUZZ_SECONDS}", "-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1",
                    f"-artifact_prefix={found}/{name}-", corpus, *([seeds] if seeds.is_dir() else [])], log,
                   FUZZ_SECONDS + 300, quiet=True)
    text = log.read_text(errors="replace")
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return name, code, int(runs.group(1)) if runs else 0, log


def have_clang():
    return shutil.which("clang") is not None


def build_fuzz():
    if have_clang():
        return build_stage("fuzz")
    tally = Tally()
    tally.skip("fuzz: clang is not installed")
    return tally


def stage_fuzz():
    tally = Tally()
    programs = sorted(p for p in (ROOT / "build/fuzz/tests/fuzz").glob("fuzz_*") if p.is_file() and os.access(p, os.X_OK))
    if not have_clang():
        return tally
    stage, nice = HERE.stage, HERE.nice

    def one(program):
        HERE.stage, HERE.nice, HERE.cpu = stage, nice, 0
        return *fuzz_one(program), HERE.cpu

    with concurrent.futures.ThreadPoolExecutor(max(2, JOBS)) as pool:
        for name, code, runs, log, cpu in pool.map(one, programs):
            HERE.cpu += cpu
            print(f"   fuzz {name}: {runs} inputs{'' if code == 0 else f', ended with {code}'}", flush=True)
            if code == 0 and runs:
                tally.passed += 1
            else:
                tally.fail(f"fuzz: {name} (see {log.relative_to(ROOT)}, inputs under build/fuzz-findings/)")
                tally.notes += tail(log, 6)
    return tally


def find_nvcc():
    return shutil.which("nvcc") or next((str(p) for p in [pathlib.Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None)


def have_gpu():
    return os.path.exists("/dev/nvidiactl")


def build_cuda():
    nvcc = find_nvcc()
    if not nvcc:
        tally = Tally()
        tally.skip("cuda: no nvcc on this machine")
        return tally
    launcher = ["-DCMAKE_CUDA_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    # Where nothing can run, the kernels need not be fast: a third of the compilers' time. Only kernels/ depends on SL_CUDA, so what
    # else `sluice` consists of is what the release build compiled.
    slow = [] if have_gpu() else ["-DSL_CUDA_COMPILE_ONLY=ON"]
    return build_stage("cuda", [f"-DCMAKE_CUDA_COMPILER={nvcc}", *launcher, *slow], ["conformance", "comm_conformance", "test_kernels_device"])


def stage_cuda():
    return ctest("cuda", "cuda", args=["-L", "cuda"]) if find_nvcc() else Tally()


def stage_shm():
    """After all tests: every name in /dev/shm that was not there before is gone, or some process of others uses it."""
    tally = Tally()
    deadline = time.monotonic() + 30
    while (left := new_shm()) and time.monotonic() < deadline:
        time.sleep(0.5)
    if left:
        tally.fail(f"e2e: tests did not remove shared memory: {sorted(left)}")
    else:
        tally.passed += 1
    return tally


def new_shm():
    names = set(os.listdir("/dev/shm")) - SHM_BEFORE if os.path.isdir("/dev/shm") else set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps") if names else ():
        try:
            text = maps.read_text(errors="replace")
        except OSError:
            continue
        names = {name for name in names if f"/dev/shm/{name}" not in text}
    return names


SHM_BEFORE = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


STAGES = {
    "deps": "install what is missing",
    "build": "release build",
    "checks": "scripts/check-*: dependencies between rooms, banned calls, headers, format, machine paths, English",
    "unit": "unit tests of the release build",
    "e2e": "pytest: clusters driven by official clients, failures, several hosts, attacks",
    "asan": "unit tests under AddressSanitizer and UBSan",
    "tsan": "unit tests under ThreadSanitizer",
    "fuzz": f"every fuzzer for {FUZZ_SECONDS} s (SL_FUZZ_SECONDS)",
    "cuda": "build with CUDA where nvcc exists, and its tests where a GPU does",
}
NEED_BUILD = {"unit", "e2e"}


@dataclasses.dataclass
class Step:
    stage: str
    name: str       # what other steps know it by
    function: callable
    needs: tuple = ()


# (nice value, steps in their order). Steps of one lane run one after another, lanes run concurrently. A step starts when the steps
# that it needs have ended, and is left out when one of them failed.
ALL_CLUSTERS = tuple(f"clusters {i + 1}" for i in range(CLUSTERS))
LANES = (
    (0, (Step("build", "release", stage_build),
         Step("e2e", "quickstart", stage_quickstart, ("release", "deps")),
         Step("e2e", "clusters 1", lambda: stage_e2e(0), ("release",)),
         Step("e2e", "attack", stage_attack, ("release", *ALL_CLUSTERS)),
         Step("e2e", "shm", stage_shm, (*ALL_CLUSTERS, "attack", "unit", "asan tests", "tsan tests")))),
    (0, (Step("deps", "deps", stage_deps),
         Step("e2e", "clusters 2", lambda: stage_e2e(1), ("release", "quickstart")),)),
    (0, (Step("checks", "checks", stage_checks, ("deps",)),
         Step("e2e", "clusters 3", lambda: stage_e2e(2), ("release", "quickstart")),)),
    (5, (Step("unit", "unit", stage_unit, ("release", "quickstart", "deps")),
         Step("asan", "asan tests", stage_asan, ("asan build", "quickstart", "deps")),
         Step("cuda", "cuda tests", stage_cuda, ("cuda build",)))),
    (5, (Step("tsan", "tsan tests", stage_tsan, ("tsan build", "quickstart", "deps")),)),
    (10, (Step("asan", "asan build", lambda: build_stage("asan")),
          Step("tsan", "tsan build", lambda: build_stage("tsan")),
          Step("cuda", "cuda build", build_cuda),
          Step("fuzz", "fuzz build", build_fuzz),
          Step("fuzz", "fuzz run", stage_fuzz, ("fuzz build", "attack")))),  # the tests under sanitizers leave processor time
)
ORDER_ONLY = {"quickstart", *ALL_CLUSTERS, "attack", "unit", "asan tests", "tsan tests", "deps"}  # needed to have ended, not to have passed


class Schedule:
    """Runs the steps of the wanted stages in their lanes."""

    def __init__(self, stages):
        self.lanes = [(nice, [step for step in steps if step.stage in stages]) for nice, steps in LANES]
        self.over = {step.name: threading.Event() for _, steps in self.lanes for step in steps}
        self.failed = set()
        self.tallies = {stage: Tally() for stage in stages}
        self.lock = threading.Lock()

    def one(self, step, nice):
        HERE.stage, HERE.nice, HERE.cpu = step.stage, nice, 0
        bad = [need for need in step.needs if need in self.failed and need not in ORDER_ONLY]
        start = time.monotonic()
        if bad:
            tally = Tally()
            tally.skip(f"{step.stage}: not run, the build failed")
            self.failed.add(step.name)
        else:
            print(f"== {step.stage}: {step.name if step.name != step.stage else STAGES[step.stage]}", flush=True)
            tally = step.function()
        tally.seconds, tally.cpu = time.monotonic() - start, HERE.cpu
        if step.name == "deps" and "SL_RUN_DEPS" in os.environ:
            tally.seconds += float(os.environ["SL_RUN_DEPS"].split()[1])
        if tally.failed:
            self.failed.add(step.name)
        repeat = f"{len(tally.doubtful)} to repeat alone, " if tally.doubtful else ""
        print(f"   {step.stage}: {step.name}: {tally.passed} passed, {tally.failed} failed, {repeat}{tally.skipped} skipped in "
              f"{tally.seconds:.0f} s ({tally.cpu:.0f} s of CPU)", flush=True)
        for doubtful in tally.doubtful:
            print(f"   failed so far: {doubtful.what}", flush=True)
        for note in tally.notes:
            if note.startswith("FAILED"):
                print(f"   {note}", flush=True)
        with self.lock:
            self.tallies[step.stage].add(tally)

    def lane(self, nice, steps):
        for step in steps:
            for need in step.needs:
                if need in self.over:
                    self.over[need].wait()
            try:
                if not STOPPING.is_set():
                    self.one(step, nice)
            except Exception as e:  # the runner's own fault: the stage has failed, the others go on
                with self.lock:
                    self.tallies[step.stage].fail(f"{step.stage}: {step.name}: {type(e).__name__}: {e}")
                    self.failed.add(step.name)
            finally:
                self.over[step.name].set()

    def run(self):
        threads = [threading.Thread(target=self.lane, args=lane, daemon=True) for lane in self.lanes]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(0.5)


def repeat_alone(tallies):
    """Decides about the doubtful tests of all stages, when nothing else runs any more."""
    doubtful = [(tally, one) for tally in tallies.values() for one in tally.doubtful]
    for tally, one in doubtful:
        steady = False
        if len(doubtful) <= MOST_REPEATED and not STOPPING.is_set():
            HERE.stage, HERE.nice, HERE.cpu = "again", 0, 0
            print(f"== again, alone: {one.what}", flush=True)
            result = one.again()
            steady = result.passed > 0 and not result.failed and not result.doubtful
            tally.cpu += HERE.cpu
            print(f"   {'passed' if steady else 'failed'} alone", flush=True)
        tally.settle(one, steady)


def choose(argv):
    parser = argparse.ArgumentParser(prog="tests/run", description="Builds and runs the tests.")
    parser.add_argument("--quick", action="store_true", help="release build and unit tests only, without the longest of them")
    parser.add_argument("--only", action="append", choices=list(STAGES), metavar="STAGE", help="one stage (repeatable)")
    parser.add_argument("--list", action="store_true", help="list the stages")
    args = parser.parse_args(argv)
    if args.list:
        for name, what in STAGES.items():
            print(f"{name:8} {what}")
        sys.exit(0)
    if args.quick:
        LEFT_OUT["unit"] = LEFT_OUT_QUICK
    wanted = set(args.only or (["deps", "build", "unit"] if args.quick else STAGES))
    if wanted & NEED_BUILD:
        wanted.add("build")
    return [name for name in STAGES if name in wanted]


def main():
    stages = choose(sys.argv[1:])
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell's background job ignores it, and what it starts cannot undo that: the tests of Ctrl-C would wait for nothing.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    for name in stages:
        (LOGS / f"{name}.log").unlink(missing_ok=True)
    schedule = Schedule(stages)
    schedule.run()
    repeat_alone(schedule.tallies)
    total = Tally()
    for name in stages:
        total.add(schedule.tallies[name])
    print("\n== summary")
    for note in total.notes:
        print(note)
    for name in stages:
        t = schedule.tallies[name]
        print(f"{name:8} {t.passed:6} passed {t.failed:4} failed {t.skipped:4} skipped {t.seconds:6.0f} s {t.cpu:6.0f} s of CPU")
    deps = float(os.environ["SL_RUN_DEPS"].split()[1]) if "SL_RUN_DEPS" in os.environ else 0
    print(f"{time.monotonic() - start + deps:.0f} s in all, {total.cpu:.0f} s of CPU on {JOBS} processors")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    code = 2
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as e:
        code = e.code
    finally:
        STOPPING.set()
        for _ in range(2):  # twice: a lane may have been about to start one
            for left in list(RUNNING):
                kill_group(left)
            time.sleep(0.1 if RUNNING else 0)
    sys.exit(code)
