"""What a step of the tests is made of: commands that run in sessions of their own and write to logs, and the tally of what they
reported. Used by tests/runner.py, which has the stages and their order.
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRESS_SECONDS = 20
FINDING = re.compile(r"Sanitizer|runtime error:|Received signal|SEGFAULT|Segmentation fault|signal SIG")  # a delay cannot cause it


@dataclasses.dataclass
class Doubtful:
    """A failure that a delay may have caused: run again alone before it counts."""
    what: str          # STAGE: NAME
    checks: int        # how many failed
    notes: list        # what the test printed
    again: callable    # runs it; returns a Tally


@dataclasses.dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list = dataclasses.field(default_factory=list)  # one line each: what failed or was skipped, and why
    doubtful: list = dataclasses.field(default_factory=list)  # of Doubtful: counted neither as passed nor as failed so far
    seconds: float = 0  # on the wall, summed over the steps of a stage
    cpu: float = 0      # of all processes that were waited for

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.notes += other.notes
        self.doubtful += other.doubtful
        self.seconds += other.seconds
        self.cpu += other.cpu

    def fail(self, what):
        self.failed += 1
        self.notes.append(f"FAILED  {what}")

    def doubt(self, what, checks, notes, again):
        """A failed test with what it printed."""
        if FINDING.search("\n".join(notes)):
            self.failed += checks
            self.notes += [f"FAILED  {what}", *notes]
        else:
            self.doubtful.append(Doubtful(what, checks, notes, again))

    def settle(self, doubtful, steady):
        self.passed += doubtful.checks if steady else 0
        self.failed += 0 if steady else doubtful.checks
        verdict = "UNSTEADY" if steady else "FAILED "
        why = ": failed while others ran, passed alone; it had printed" if steady else ""
        self.notes += [f"{verdict} {doubtful.what}{why}", *doubtful.notes]

    def skip(self, what):
        self.skipped += 1
        self.notes.append(f"skipped {what}")


def last_line(path):
    try:
        with open(path, "rb") as f:
            f.seek(max(0, f.seek(0, 2) - 4096))
            lines = f.read().decode(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip()[:110] for line in reversed(lines) if line.strip()), "")
    except OSError:
        return ""


SHOWN_LINES, SHOWN_WIDTH = 40, 200  # of the output of a test that failed: the summary may be all that anybody gets to see


def end_of(text, lines=SHOWN_LINES):
    return ["        " + line[:SHOWN_WIDTH] for line in text.rstrip().splitlines()[-lines:]]


def tail(path, lines=12):
    return end_of(path.read_text(errors="replace") if path.exists() else "", lines)


# For machines that lack them: compilers' caches and mpirun want a home, git refuses to list the files of another user's clone.
DEFAULTS = {"HOME": str(ROOT / "build"), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": str(ROOT)}

# What a lane of steps knows while it runs (thread-local): stage, nice, cpu.
HERE = threading.local()
RUNNING = set()
STOPPING = threading.Event()


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def begin(command, out, env):
    """Starts a command in a session of its own, with the lane's nice value. A session may be a scheduling group of its own
    (autogroup), inside which nice values count for nothing, so the group gets the value too."""
    nice = getattr(HERE, "nice", 0)
    if nice:
        command = ["nice", "-n", str(nice), *command]
    process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, env={**DEFAULTS, **os.environ, **(env or {})}, start_new_session=True)
    if nice:
        try:
            pathlib.Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))
        except OSError:
            pass
    return process


def ended(process):
    """Like poll(), and adds the CPU time of the process and of what it waited for to the step's."""
    if process.returncode is None:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            HERE.cpu = getattr(HERE, "cpu", 0) + usage.ru_utime + usage.ru_stime
    return process.returncode is not None


def run(command, log, timeout, env=None, quiet=False):
    """Exit code of a command whose output goes to a log; 124 when it was killed after timeout seconds."""
    if STOPPING.is_set():
        return 143
    start = shown = time.monotonic()
    with open(log, "ab") as out:
        out.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        out.flush()
        process = begin(command, out, env)
        RUNNING.add(process)
        try:
            while not ended(process):
                now = time.monotonic()
                if now - start > timeout:
                    out.write(f"\nkilled after {timeout} s\n".encode())
                    return 124
                if not quiet and now - shown > PROGRESS_SECONDS:
                    shown = now
                    print(f"   {HERE.stage:5} {int(now - start):4d} s  {last_line(log)}", flush=True)
                time.sleep(0.05)
            return process.returncode
        finally:
            kill_group(process)
            while not ended(process):
                time.sleep(0.01)
            RUNNING.discard(process)
