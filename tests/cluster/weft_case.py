"""What the process-level tests share: the three real programs, driven as a user drives them.

Each test case gets folders of its own (programs, temporary files, results) and is checked afterwards: no process,
shared memory or temporary file may be left.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAMS = ("weft", "weft-coordinator", "weft-worker")
RUN_TIMEOUT_S = 240

REVERSE_JOB = """
name: reverse
model: {gpt: {layers: 2, heads: 4, dim: 32, context: 24, position: rotary, norm: rms, tied: false}}
data: {reverse: {symbols: 8, max_length: 8, eval_samples: 50}}
train:
  steps: 12
  batch: 24
  seed: 7
  optimizer: {sgd: {lr: 0.1, clamp: 1.0}}
  schedule: {warmup: 3, decay: cosine}
ranks: {min: 1, max: 6}
lanes: 12
"""

TEXT_JOB = """
name: text
model: {gpt: {layers: 2, heads: 2, dim: 32, context: 32}}
data: {text: {path: text.txt, tokens: characters}}
train:
  steps: 12
  batch: 12
  seed: 3
  clip_norm: 1.0
  optimizer: {adamw: {lr: 1e-3, betas: [0.9, 0.99], weight_decay: 0.1}}
  schedule: {warmup: 3, decay: cosine, min_lr: 1e-4}
ranks: {min: 1, max: 6}
lanes: 12
"""


def made_up_text(size=6000):
    """Words drawn from a fixed seed: text enough for a character model, and not a file to commit."""
    draw = random.Random(5)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(draw.choice(letters) for _ in range(draw.randint(2, 7))) for _ in range(60)]
    out = []
    while sum(map(len, out)) + len(out) < size:
        out.append(draw.choice(words) + draw.choice(["", "", "", ",", ".", "\n"]))
    return " ".join(out)


def processes_of(folder):
    """Ids of running programs whose executable lies in `folder`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/exe").startswith(folder + "/"):
                found.append(int(pid))
        except OSError:
            pass  # gone, or a kernel thread
    return found


def wait_until(condition, seconds, what):
    """Polls an outside fact that offers no event; every wait of these tests is bounded."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


class WeftCase(unittest.TestCase):
    programs = {}  # name -> path; set by main()
    full = False   # the long form of a test, run by hand

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="weft-case-")
        self.bin = os.path.join(self.root, "bin")
        self.tmp = os.path.join(self.root, "tmp")
        self.out = os.path.join(self.root, "runs")
        for folder in (self.bin, self.tmp):
            os.mkdir(folder)
        for name, path in self.programs.items():
            try:
                os.link(os.path.realpath(path), os.path.join(self.bin, name))
            except OSError:
                shutil.copy(path, os.path.join(self.bin, name))
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.write("text.txt", made_up_text())

    def tearDown(self):
        try:
            wait_until(lambda: not processes_of(self.bin), 5, "the programs' end")
            self.assertEqual(os.listdir(self.tmp), [], "temporary files are left behind")
            self.assertLessEqual(set(os.listdir("/dev/shm")), self.shared_memory)
        finally:
            for pid in processes_of(self.bin):
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.root)

    def write(self, name, text):
        path = os.path.join(self.root, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def start(self, *args):
        """Starts `weft ...`; its stderr goes to a file, so that a full pipe never blocks it."""
        self.stderr_path = os.path.join(self.root, "stderr.txt")
        with open(self.stderr_path, "w", encoding="utf-8") as stderr:
            return subprocess.Popen(
                [os.path.join(self.bin, "weft"), *args],
                stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=self.root, start_new_session=True,
                env={"HOME": self.root, "TMPDIR": self.tmp, "PATH": os.environ.get("PATH", "")})

    def finish(self, process, timeout=RUN_TIMEOUT_S):
        """(exit code, stdout, stderr)"""
        try:
            stdout, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise AssertionError(f"{process.args} ran longer than {timeout} s:\n{self.stderr()}") from None
        return process.returncode, stdout, self.stderr()

    def stderr(self):
        with open(self.stderr_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def weft(self, *args, timeout=RUN_TIMEOUT_S):
        return self.finish(self.start(*args), timeout)

    def run_args(self, job, out, ranks=1, resume=False, **settings):
        args = ["run", job, "--ranks", str(ranks), "--out", out, "-o", "json"]
        for key, value in settings.items():
            args += ["--set", f"{key.replace('__', '.')}={value}"]
        return args + (["--resume"] if resume else [])

    def train(self, job, **kwargs):
        """Runs a job to its end and returns the last line of stdout as JSON."""
        out = kwargs.pop("out", None) or tempfile.mkdtemp(dir=self.root, prefix="runs-")
        code, stdout, stderr = self.weft(*self.run_args(job, out, **kwargs))
        self.assertEqual(code, 0, f"{kwargs}\n{stdout}\n{stderr}")
        return json.loads(stdout.strip().splitlines()[-1])


def main():
    """Arguments: the paths of the three programs, then unittest's; `--full` runs the long forms."""
    args = sys.argv[1:]
    if "--full" in args:
        args.remove("--full")
        WeftCase.full = True
    WeftCase.programs = {os.path.basename(path): os.path.abspath(path) for path in args[:3]}
    missing = set(PROGRAMS) - set(WeftCase.programs)
    if missing:
        sys.exit(f"usage: {sys.argv[0]} {' '.join(PROGRAMS)} [--full] [unittest arguments]; missing: {missing}")
    unittest.main(argv=[sys.argv[0], *args[3:]], verbosity=2)
