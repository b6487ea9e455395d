"""Ended anywhere, resumed anywhere: the digest of the undisturbed run."""
import json
import os
import random
import shutil
import signal

import weft_case

STEPS = 120


class Resume(weft_case.WeftCase):
    def setUp(self):
        super().setUp()
        self.job = self.write("job.yaml", weft_case.TEXT_JOB)
        self.settings = dict(train__steps=STEPS, checkpoint__every=10)
        self.undisturbed = self.train(self.job, ranks=2, **self.settings)["state_digest"]

    def steps_on_disk(self):
        folder = os.path.join(self.out, "text")
        if not os.path.isdir(folder):
            return []
        return [int(name[5:]) for name in os.listdir(folder)
                if name.startswith("step-") and os.path.exists(os.path.join(folder, name, "manifest.json"))]

    def disturb(self, ranks, step, end, resume):
        """Runs until a checkpoint of `step` or later is there, then ends the run by `end`."""
        process = self.start(*self.run_args(self.job, self.out, ranks=ranks, resume=resume, **self.settings))
        weft_case.wait_until(lambda: max(self.steps_on_disk(), default=0) >= step or process.poll() is not None, 120,
                             f"a checkpoint of step {step}")
        end(process)
        return self.finish(process)

    def finish_run(self, ranks):
        return self.train(self.job, out=self.out, ranks=ranks, resume=True, **self.settings)["state_digest"]

    def test_Sigterm_SavesAndResumesAtAnyRankCount(self):
        draw = random.Random(1)
        for ranks, later_ranks in ((2, 2), (2, 3), (3, 1)):
            with self.subTest(ranks=ranks, later_ranks=later_ranks):
                self.out = os.path.join(self.root, f"term-{ranks}-{later_ranks}")
                code, stdout, stderr = self.disturb(ranks, draw.randrange(10, 70, 10),
                                                    lambda p: p.send_signal(signal.SIGTERM), resume=False)
                self.assertEqual(code, 130, stderr)
                self.assertEqual(json.loads(stdout.strip().splitlines()[-1])["state"], "cancelled")
                self.assertEqual(self.finish_run(later_ranks), self.undisturbed)

    def test_SigkillOfEverything_ResumesFromTheNewestCheckpoint(self):
        draw = random.Random(2)

        def kill_all(_):
            for pid in weft_case.processes_of(self.bin):
                os.kill(pid, signal.SIGKILL)

        rounds = 10 if self.full else 3
        for round_number in range(rounds):
            ranks, later_ranks = draw.choice(((2, 2), (2, 1), (1, 3), (3, 2)))
            with self.subTest(round=round_number, ranks=ranks, later_ranks=later_ranks):
                self.out = os.path.join(self.root, f"kill-{round_number}")
                code, _, _ = self.disturb(ranks, draw.randrange(10, 90, 10), kill_all, resume=False)
                self.assertNotEqual(code, 0)
                self.assertEqual(self.finish_run(later_ranks), self.undisturbed)
        # Nothing ran that could have cleaned up after a SIGKILL of everything.
        for name in os.listdir(self.tmp):
            shutil.rmtree(os.path.join(self.tmp, name))

    def test_ExistingCheckpoints_WithoutResume_AreNotTouched(self):
        self.train(self.job, out=self.out, **self.settings)
        before = sorted(self.steps_on_disk())
        code, _, stderr = self.weft(*self.run_args(self.job, self.out, **self.settings))
        self.assertNotEqual(code, 0)
        self.assertIn("--resume", stderr)
        self.assertEqual(sorted(self.steps_on_disk()), before)

    def test_FreshWithBadJob_LeavesTheEarlierRunInPlace(self):
        self.train(self.job, out=self.out, **self.settings)
        code, _, stderr = self.weft(*self.run_args(self.job, self.out, train__schedule__warmup=STEPS,
                                                   **self.settings), "--fresh")
        self.assertEqual(code, 2, stderr)
        self.assertIn("lower it or raise train.steps", stderr)
        self.assertEqual(os.listdir(self.out), ["text"])

    def test_FolderOfARunningRun_IsRefusedAndTheRunGoesOn(self):
        settings = dict(self.settings, train__steps=100000)
        running = self.start(*self.run_args(self.job, self.out, **settings))
        weft_case.wait_until(lambda: self.steps_on_disk() or running.poll() is not None, 120, "a checkpoint")
        for flag, expected in (("--fresh", 8), ("--resume", 20)):
            with self.subTest(flag=flag):
                code, _, stderr = self.weft(*self.run_args(self.job, self.out, **settings), flag)
                self.assertEqual(code, expected, stderr)
                self.assertIn("another run writes its checkpoints to", stderr)
                self.assertIsNone(running.poll())
        running.send_signal(signal.SIGTERM)
        code, _, stderr = self.finish(running)
        self.assertEqual(code, 130, stderr)
        self.assertEqual(os.listdir(self.out), ["text"])


if __name__ == "__main__":
    weft_case.main()
