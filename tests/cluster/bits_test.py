"""One state digest a job and instruction set, whatever the ranks, transport and threads."""
import itertools

import weft_case


def instruction_sets():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    sets = ["avx2"] if "avx2" in flags else ["sse2"]
    return sets + (["avx512"] if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"} <= set(flags) else [])


class Bits(weft_case.WeftCase):
    def matrix(self):
        """Settings that must not matter. In full: every combination; else each value at least once."""
        if self.full:
            return [dict(ranks=r, transport=t, threads=n)
                    for r, t, n in itertools.product((1, 2, 3, 4, 6), ("shm", "tcp"), (1, 2))]
        return [dict(ranks=1, threads=1), dict(ranks=1, threads=2), dict(ranks=2, transport="tcp", threads=1),
                dict(ranks=3, transport="shm", threads=2), dict(ranks=4, transport="shm", threads=1),
                dict(ranks=6, transport="tcp", threads=1)]

    def check(self, text):
        job = self.write("job.yaml", text)
        steps = 60 if self.full else 12
        for name in instruction_sets():
            digests = {}
            for settings in self.matrix():
                result = self.train(job, instruction_set=name, train__steps=steps, **settings)
                digests.setdefault(result["state_digest"], []).append(settings)
                self.assertEqual(result["steps"], steps)
            self.assertEqual(len(digests), 1, f"{name}: {digests}")
            print(f"{name}: {next(iter(digests))} from {len(self.matrix())} runs", flush=True)

    def test_Reverse_AnyRanksTransportThreads_OneDigest(self):
        self.check(weft_case.REVERSE_JOB)

    def test_Text_AnyRanksTransportThreads_OneDigest(self):
        self.check(weft_case.TEXT_JOB)

    def test_OtherSeed_GivesAnotherDigest(self):
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        digests = {self.train(job, train__seed=seed)["state_digest"] for seed in (1, 2)}
        self.assertEqual(len(digests), 2)

    def test_Ring_AnyRanks_LossesStayClose(self):
        job = self.write("job.yaml", weft_case.REVERSE_JOB)
        ordered = self.train(job, ranks=1)
        for ranks in (1, 2, 3, 4, 6):
            ring = self.train(job, ranks=ranks, reduce="ring")
            self.assertAlmostEqual(ring["final_loss"] / ordered["final_loss"], 1, delta=1e-5, msg=f"{ranks} ranks")


if __name__ == "__main__":
    weft_case.main()
