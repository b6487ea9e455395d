"""The two first jobs in PyTorch on CPU, to hold configs/jobs/seqrev.yaml and shakespeare.yaml against.

    python3 torch_jobs.py seqrev [--seed 1] [--threads 2] [--compile]
    python3 torch_jobs.py char --text tinyshakespeare.txt

Prints one JSON line: process_s (from this script's first line, importing torch included), total_s (batches, training
and final evaluation), median_step_ms with p10 and p90 (batch, forward, backward, update), max_rss_mib, and
token_accuracy on held-out sequences or validation_loss.
"""
import time

START = time.perf_counter()

import argparse
import json
import math
import resource
import statistics

import torch
import torch.nn.functional as F
from torch import nn

BOS, SEP, EOS, PAD, FIRST = range(5)
IGNORED = -100

JOBS = {
    "seqrev": dict(layers=2, heads=4, dim=128, context=64, vocab=36, rotary=True, rms=True, tied=False,
                   init="fan_in", init_scale=0.01, residual_scale=0.15, symbols=32, max_length=16, eval_samples=1000,
                   steps=700, batch=60, lr=0.1, warmup=20, min_lr=0.0),
    "char": dict(layers=4, heads=4, dim=128, context=64, rotary=False, rms=False, tied=True,
                 init="normal", init_scale=0.02, validation=0.1,
                 steps=2000, batch=12, lr=1e-3, warmup=100, min_lr=1e-4),
}


class LayerNormNoBias(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


def make_norm(job):
    return nn.RMSNorm(job["dim"], eps=1e-6) if job["rms"] else LayerNormNoBias(job["dim"])


class Block(nn.Module):
    def __init__(self, job):
        super().__init__()
        dim = job["dim"]
        self.heads = job["heads"]
        self.norm1, self.norm2 = make_norm(job), make_norm(job)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x, rotation):
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def rotate(x, cos, sin):
    """Turns the pairs (i, i + D/2) forward."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Decoder(nn.Module):
    def __init__(self, job):
        super().__init__()
        dim, context, vocab = job["dim"], job["context"], job["vocab"]
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = None if job["rotary"] else nn.Parameter(torch.empty(context, dim))
        self.blocks = nn.ModuleList(Block(job) for _ in range(job["layers"]))
        self.norm = make_norm(job)
        self.head = nn.Linear(dim, vocab, bias=False)
        half = dim // job["heads"] // 2
        angle = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self.initialize(job)
        if job["tied"]:
            self.head.weight = self.tokens.weight

    def initialize(self, job):
        """'normal': all normal(init_scale). 'fan_in': linears normal(1 / sqrt(inputs)), embeddings
        normal(init_scale). Linears into the residual: times residual_scale, by default 1 / sqrt(2 layers) or,
        with 'fan_in', 1 / (2 layers)."""
        sums = 2 * job["layers"]
        residual = job.get("residual_scale") or (sums ** -0.5 if job["init"] == "normal" else 1 / sums)
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue
            std = job["init_scale"]
            if job["init"] == "fan_in" and not name.startswith(("tokens", "positions")):
                std = p.size(1) ** -0.5
            if name.endswith(("proj.weight", "down.weight")):
                std *= residual
            nn.init.normal_(p, std=std)

    def forward(self, tokens):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions
        rotation = (self.cos, self.sin) if self.positions is None else None
        for block in self.blocks:
            x = block(x, rotation)
        return self.head(self.norm(x))


class Reversal:
    """BOS a1..an SEP an..a1 EOS PAD..; what follows SEP is predicted, EOS included."""

    def __init__(self, job, args):
        self.job = job
        self.held_out = self.draw(job["eval_samples"], torch.Generator().manual_seed(args.seed + 1_000_000))
        self.generator = torch.Generator().manual_seed(args.seed)

    def draw(self, rows, generator):
        job = self.job
        n = torch.randint(1, job["max_length"] + 1, (rows, 1), generator=generator)
        symbols = FIRST + torch.randint(job["symbols"], (rows, job["max_length"]), generator=generator)
        at = torch.arange(job["context"]).expand(rows, -1)
        which = torch.where(at <= n, at - 1, 2 * n + 1 - at).clamp(0, job["max_length"] - 1)
        tokens = symbols.gather(1, which)
        for token, where in ((BOS, at == 0), (SEP, at == n + 1), (EOS, at == 2 * n + 2), (PAD, at > 2 * n + 2)):
            tokens = tokens.masked_fill(where, token)
        counted = (at > n) & (at < 2 * n + 2)
        return tokens, tokens.roll(-1, 1).masked_fill(~counted, IGNORED)

    def batch(self):
        return self.draw(self.job["batch"], self.generator)

    def evaluate(self, model):
        hits = counted = 0
        for tokens, targets in zip(*(part.split(100) for part in self.held_out)):
            hits += (model(tokens).argmax(-1) == targets).sum().item()
            counted += (targets != IGNORED).sum().item()
        return dict(token_accuracy=round(hits / counted, 5))


class Characters:
    """The text's first part trains, by windows from anywhere in it; the rest is validated on, each character once."""

    def __init__(self, job, args):
        with open(args.text, encoding="utf-8", newline="") as file:
            text = file.read()
        number = {c: i for i, c in enumerate(sorted(set(text)))}
        ids = torch.tensor([number[c] for c in text])
        split = len(ids) - int(len(ids) * job["validation"])
        self.train, self.validation = ids[:split], ids[split:]
        self.job = dict(job, vocab=len(number))
        self.window = torch.arange(job["context"] + 1)
        self.generator = torch.Generator().manual_seed(args.seed)

    def batch(self):
        starts = torch.randint(len(self.train) - self.job["context"], (self.job["batch"], 1),
                               generator=self.generator)
        window = self.train[starts + self.window]
        return window[:, :-1], window[:, 1:]

    def evaluate(self, model):
        context, length = self.job["context"], len(self.validation) - 1
        pad = -length % context
        tokens = F.pad(self.validation[:-1], (0, pad)).view(-1, context)
        targets = F.pad(self.validation[1:], (0, pad), value=IGNORED).view(-1, context)
        total = 0.0
        for x, y in zip(tokens.split(64), targets.split(64)):
            total += F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORED, reduction="sum").item()
        return dict(validation_loss=round(total / length, 4), validation_targets=length)


def rate(job, step):
    if step < job["warmup"]:
        return job["lr"] * (step + 1) / job["warmup"]
    part = (step - job["warmup"]) / (job["steps"] - job["warmup"])
    return job["min_lr"] + (job["lr"] - job["min_lr"]) * (1 + math.cos(math.pi * part)) / 2


def make_update(name, params):
    """A function that limits the gradients and takes one step at a rate."""
    if name == "seqrev":
        opt = torch.optim.SGD(params, fused=True)
    else:
        groups = [dict(params=[p for p in params if p.dim() >= 2], weight_decay=0.1),
                  dict(params=[p for p in params if p.dim() < 2], weight_decay=0.0)]
        opt = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8, fused=True)

    def update(lr):
        if name == "seqrev":
            nn.utils.clip_grad_value_(params, 1.0)
        else:
            nn.utils.clip_grad_norm_(params, 1.0)
        for group in opt.param_groups:
            group["lr"] = lr
        opt.step()
        opt.zero_grad(set_to_none=True)

    return update


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("job", choices=JOBS)
    ap.add_argument("--text", help="the char job's text")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--steps", type=int, help="other than the job's; the schedule is that long too")
    ap.add_argument("--init", choices=["normal", "fan_in"], help="other than the job's")
    ap.add_argument("--init-scale", type=float, help="other than the job's")
    ap.add_argument("--residual-scale", type=float, help="other than the job's")
    ap.add_argument("--compile", action="store_true", help="torch.compile; its time counts in total_s")
    args = ap.parse_args()
    if args.job == "char" and not args.text:
        ap.error("the char job needs --text FILE")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    job = dict(JOBS[args.job])
    for given in ("steps", "init", "init_scale", "residual_scale"):
        if getattr(args, given) is not None:
            job[given] = getattr(args, given)
    begin = time.perf_counter()
    data = (Reversal if args.job == "seqrev" else Characters)(job, args)
    job = data.job
    model = Decoder(job)
    params = list(model.parameters())
    update = make_update(args.job, params)
    net = torch.compile(model, dynamic=False, fullgraph=True) if args.compile else model
    times, loss = [], None
    for step in range(job["steps"]):
        started = time.perf_counter()
        tokens, targets = data.batch()
        loss = F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        update(rate(job, step))
        times.append((time.perf_counter() - started) * 1e3)
    train_s = time.perf_counter() - begin
    with torch.no_grad():
        result = data.evaluate(model)
    end = time.perf_counter()
    tenths = statistics.quantiles(times, n=10, method="inclusive")
    print(json.dumps(dict(
        job=args.job, seed=args.seed, **result, process_s=round(end - START, 2), total_s=round(end - begin, 2),
        train_s=round(train_s, 2), median_step_ms=round(statistics.median(times), 3), p10=round(tenths[0], 3),
        p90=round(tenths[8], 3), last_loss=round(loss.item(), 4),
        max_rss_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1), steps=job["steps"],
        batch=job["batch"], parameters=sum(p.numel() for p in params), init=job["init"],
        init_scale=job["init_scale"], residual_scale=job.get("residual_scale"), compile=args.compile,
        threads=args.threads, torch=torch.__version__)))


if __name__ == "__main__":
    main()
