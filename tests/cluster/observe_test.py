"""What a run shows of itself."""
import json
import os
import time

import weft_case


class Observe(weft_case.WeftCase):
    def test_StartUp_OfEveryRank_AddsUpWithinTheCommand(self):
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        begin = time.monotonic()
        result = self.train(job, ranks=2)
        wall_ms = (time.monotonic() - begin) * 1000
        self.assertEqual([s["rank"] for s in result["startup"]], [0, 1])
        for rank in result["startup"]:
            names = [phase["name"] for phase in rank["phases"]]
            self.assertEqual(names, ["admit", "queue", "plan", "spawn", "libraries", "connect", "device", "data",
                                     "wait", "communicator", "bind", "state", "first step", "messages"])
            self.assertTrue(all(phase["ms"] >= 0 for phase in rank["phases"]), rank)
            self.assertAlmostEqual(sum(phase["ms"] for phase in rank["phases"]), rank["total_ms"], places=3)
            self.assertLess(rank["total_ms"], wall_ms)

    def test_Profile_LeavesATraceARankAndPrintsTheTable(self):
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        plain = self.train(job, ranks=2)
        out = os.path.join(self.root, "profiled")
        code, stdout, stderr = self.weft("run", job, "--ranks", "2", "--out", out, "--profile=3")
        self.assertEqual(code, 0, stderr)
        self.assertIn(plain["state_digest"], stdout)
        self.assertIn("OP", stdout)
        self.assertIn("steps 5 to 7 of rank 0 on cpu", stdout)
        folder = os.path.join(out, "reverse", "profile")
        self.assertEqual(sorted(os.listdir(folder)), ["kernels.json", "rank-0.trace.json", "rank-1.trace.json"])
        for rank in (0, 1):
            with open(os.path.join(folder, f"rank-{rank}.trace.json"), encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            spans = [event for event in events if event["ph"] == "X"]
            self.assertEqual({event["pid"] for event in spans}, {rank})
            self.assertEqual([e["name"] for e in spans if e["cat"] == "step"], ["step 5", "step 6", "step 7"])
            self.assertTrue(any(e["cat"] == "kernel" for e in spans))
            self.assertTrue(all(e["dur"] >= 0 for e in spans))

    def test_Profile_WithJson_NamesTheFolder(self):
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        code, stdout, stderr = self.weft(*self.run_args(job, self.out), "--profile")
        self.assertEqual(code, 0, stderr)
        result = json.loads(stdout.strip().splitlines()[-1])
        self.assertEqual(result["profile"], os.path.join(self.out, "reverse", "profile"))

    def test_Doctor_OnAMachineThatRunsJobs_IsContent(self):
        code, stdout, stderr = self.weft("doctor", "-o", "json")
        report = json.loads(stdout)
        self.assertEqual((code, report["ok"]), (0, True), stdout + stderr)
        names = [check["name"] for check in report["checks"]]
        for name in ("weft-coordinator", "weft-worker", "CPU", "instruction sets", "open files", "shared memory",
                     "ports", "coordinator"):
            self.assertIn(name, names)

    def test_Doctor_WithoutAWorker_SaysSo(self):
        os.remove(os.path.join(self.bin, "weft-worker"))
        code, stdout, _ = self.weft("doctor")
        self.assertEqual(code, 1)
        self.assertRegex(stdout, r"weft-worker +missing +no program .*deploy/build.sh")

    def test_Doctor_NamedCoordinatorThatIsNotThere_IsMissing(self):
        code, stdout, _ = self.weft("doctor", "--state-dir", os.path.join(self.root, "nowhere"))
        self.assertEqual(code, 1)
        self.assertRegex(stdout, r"coordinator +missing +none was started in ")


if __name__ == "__main__":
    weft_case.main()
