"""A rank killed at a random moment: the cause is named within seconds, nothing is left, the next job runs."""
import json
import os
import random
import signal
import time

import weft_case


def executors_of(folder):
    """Ids of the ranks' processes."""
    found = []
    for pid in weft_case.processes_of(folder):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"exec" in file.read().split(b"\0")[1:2]:
                    found.append(pid)
        except OSError:
            pass
    return found


class Kill(weft_case.WeftCase):
    def test_OneRank_KilledAtARandomMoment_CauseIsNamed(self):
        draw = random.Random(11)
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        slowest = 0.0
        for round_number in range(20 if self.full else 4):
            ranks = draw.choice((2, 3, 4))
            transport = draw.choice(("shm", "tcp"))
            with self.subTest(round=round_number, ranks=ranks, transport=transport):
                out = os.path.join(self.root, f"kill-{round_number}")
                process = self.start(*self.run_args(job, out, ranks=ranks, transport=transport,
                                                    train__steps=1000000))
                victims = weft_case.wait_until(
                    lambda: len(executors_of(self.bin)) == ranks and executors_of(self.bin), 60, "all ranks")
                time.sleep(draw.random())  # the moment is meant to be random
                os.kill(draw.choice(victims), signal.SIGKILL)
                begin = time.monotonic()
                code, stdout, stderr = self.finish(process, timeout=30)
                slowest = max(slowest, time.monotonic() - begin)
                self.assertEqual(code, 20, stderr)
                result = json.loads(stdout.strip().splitlines()[-1])
                self.assertEqual(result["state"], "failed")
                self.assertIn("SIGKILL", json.dumps(result))
                weft_case.wait_until(lambda: not weft_case.processes_of(self.bin), 5, "the programs' end")
                self.assertEqual(os.listdir(self.tmp), [])
        print(f"slowest end after a kill: {slowest:.2f} s", flush=True)
        self.train(job, ranks=2)


if __name__ == "__main__":
    weft_case.main()
