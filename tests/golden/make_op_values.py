"""Writes op_values.json: values and gradients of ops, from PyTorch in float64 on CPU.

    python3 make_op_values.py        # needs torch and numpy; writes op_values.json beside this file

Operands are as in worker/core/ops/README.md; arrays are row-major and flat. The file is {"torch": version, "cases":
[...]}, a case being
    op, name, attrs       the op's attributes; an attribute left out has the op's default
    inputs                in the op's order, each {name, shape, dtype} and one of
        number, scale, shift    element i = float32(float32(scale * r(number, i)) + shift)
        values                  integers, or scalars
    outputs               {name, shape, values}, for those of the op's outputs that PyTorch gives
    grads                 {of: an input's name, values}: the gradient of sum(y * c), where y is the first output and
                          c[i] = r(100, i). Optimizers have none: their outputs are the inputs that they write.
All inputs are exact in float32; all results are of float64 arithmetic on them.

r is make_golden.py's, modulo 2^32:
    h(x): x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
    r(p, i) = (h((p + 1) * 0x9E3779B9 + i) >> 8) * 2^-23 - 1            exactly, in [-1, 1)
Integer inputs are h((p + 1) * 0x9E3779B9 + i) % limit; they are stored nevertheless.
"""
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

from make_golden import h, r

WEIGHT_OF_OUTPUT = 100  # the number p of c


class Case:
    """Collects one case. Inputs are float64 tensors that hold float32 values."""

    def __init__(self, op, name, **attrs):
        self.out = dict(op=op, name=name, attrs=attrs, inputs=[], outputs=[], grads=[])
        self.leaves = {}

    def real(self, name, *shape, scale=1.0, shift=0.0):
        number = len(self.out["inputs"])
        x = np.float32(scale) * r(number, math.prod(shape)) + np.float32(shift)
        self.out["inputs"].append(dict(name=name, shape=shape, dtype="f32", number=number, scale=scale, shift=shift))
        self.leaves[name] = torch.tensor(x.reshape(shape), dtype=torch.float64, requires_grad=True)
        return self.leaves[name]

    def ids(self, name, *shape, limit, ignore_each=0):
        number, count = len(self.out["inputs"]), math.prod(shape)
        values = h((number + 1) * 0x9E3779B9 % 2**32 + np.arange(count, dtype=np.uint64)) % np.uint64(limit)
        values = values.astype(np.int64)
        if ignore_each:
            values[::ignore_each] = -100
        self.out["inputs"].append(dict(name=name, shape=shape, dtype="i32", values=values.tolist()))
        return torch.tensor(values.reshape(shape))

    def scalar(self, name, value, dtype="f32"):
        if dtype == "f32":
            value = float(np.float32(value))
        self.out["inputs"].append(dict(name=name, shape=[], dtype=dtype, values=[value]))
        return value

    def done(self, **outputs):
        """Outputs in the op's order; the first is differentiated unless there is nothing to differentiate."""
        for name, value in outputs.items():
            value = torch.as_tensor(value, dtype=torch.float64)
            self.out["outputs"].append(
                dict(name=name, shape=list(value.shape), values=value.detach().flatten().tolist()))
        y = next(iter(outputs.values()))
        if y.requires_grad:
            c = torch.tensor(r(WEIGHT_OF_OUTPUT, y.numel()), dtype=torch.float64).reshape(y.shape)
            for name, g in zip(self.leaves, torch.autograd.grad((y * c).sum(), list(self.leaves.values()))):
                self.out["grads"].append(dict(of=name, values=g.flatten().tolist()))
        return self.out


def layer_norm(name, *shape, bias, scale=1.0, shift=0.0, eps=1e-5):
    case = Case("layer_norm", name, eps=eps)
    x = case.real("x", *shape, scale=scale, shift=shift)
    weight = case.real("weight", shape[-1], scale=0.5, shift=1.0)
    b = case.real("bias", shape[-1]) if bias else None
    y = F.layer_norm(x, shape[-1:], weight, b, eps)
    return case.done(y=y, mean=x.mean(-1), rstd=torch.rsqrt(x.var(-1, correction=0) + eps))


def rms_norm(name, *shape, scale=1.0, eps=1e-6):
    case = Case("rms_norm", name, eps=eps)
    x = case.real("x", *shape, scale=scale)
    weight = case.real("weight", shape[-1], scale=0.5, shift=1.0)
    return case.done(y=F.rms_norm(x, shape[-1:], weight, eps), rstd=torch.rsqrt(x.square().mean(-1) + eps))


def gelu(name, *shape, scale):
    case = Case("gelu", name)
    return case.done(y=F.gelu(case.real("x", *shape, scale=scale), approximate="tanh"))


def softmax(name, *shape, scale, shift=0.0):
    case = Case("softmax", name)
    return case.done(y=torch.softmax(case.real("x", *shape, scale=scale, shift=shift), -1))


def cross_entropy(name, *shape, scale, ignore_each=0):
    case = Case("cross_entropy", name)
    logits = case.real("logits", *shape, scale=scale)
    targets = case.ids("targets", *shape[:-1], limit=shape[-1], ignore_each=ignore_each)
    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100, reduction="sum")
    counted = targets >= 0
    correct = (logits.argmax(-1) == targets) & counted
    return case.done(loss_sum=loss, count=counted.sum(), correct=correct.sum(), lse=torch.logsumexp(logits, -1))


def split(qkv, heads):
    """q, k, v, each [B, H, T, D], of a packed [B, T, 3 * H * D]."""
    batch, time, features = qkv.shape
    return (part.transpose(1, 2) for part in qkv.view(batch, time, 3, heads, features // (3 * heads)).unbind(2))


def pack(*parts):
    batch, _, time, _ = parts[0].shape
    return torch.stack([part.transpose(1, 2) for part in parts], 2).reshape(batch, time, -1)


def turn(x, base, inverse=False):
    """Multiplies the pair (i, i + D/2), as a complex number, by exp(i t base^(-2i/D)), or by its inverse."""
    half = x.shape[-1] // 2
    frequency = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), frequency)
    factor = torch.polar(torch.ones_like(angle), -angle if inverse else angle)
    turned = torch.complex(x[..., :half], x[..., half:]) * factor
    return torch.cat([turned.real, turned.imag], -1)


def rotary(name, batch, time, heads, width, inverse=False):
    case = Case("rotary", name, heads=heads, base=10000.0, inverse=inverse)
    q, k, v = split(case.real("qkv", batch, time, 3 * heads * width), heads)
    return case.done(y=pack(turn(q, 10000.0, inverse), turn(k, 10000.0, inverse), v))


def attention(name, batch, time, heads, width, causal=True, base=0.0, scale=1.0):
    case = Case("attention", name, heads=heads, causal=causal, rotary_base=base)
    q, k, v = split(case.real("qkv", batch, time, 3 * heads * width, scale=scale), heads)
    if base:
        q, k = turn(q, base), turn(k, base)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.mT / math.sqrt(width)
    if causal:
        scores = scores.masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), -math.inf)
    return case.done(y=y.transpose(1, 2).reshape(batch, time, heads * width), lse=torch.logsumexp(scores, -1))


def embedding(name, rows, width, *shape):
    case = Case("embedding", name)
    table = case.real("table", rows, width)
    return case.done(y=F.embedding(case.ids("ids", *shape, limit=rows), table))


def clip(case, p, clip_norm):
    """Clips by the float32 norm that the case gives."""
    norm = case.scalar("norm", p.grad.norm().item())
    torch.nn.utils.clip_grads_with_norm_([p], clip_norm, torch.tensor(norm, dtype=torch.float64))


def sgd(name, count_elements, clamp=0.0, clip_norm=0.0):
    case = Case("sgd", name, clamp=clamp, clip_norm=clip_norm)
    param = case.real("param", count_elements)
    grad = case.real("grad", count_elements, scale=16.0)
    count, lr = case.scalar("count", 5.0), case.scalar("lr", 0.1)
    p = param.detach().clone().requires_grad_()
    p.grad = grad.detach() / count
    if clip_norm:
        clip(case, p, clip_norm)
    if clamp:
        torch.nn.utils.clip_grad_value_([p], clamp)
    torch.optim.SGD([p], lr=lr).step()
    return case.done(param=p.detach())


def adamw(name, count_elements, step, decay, clip_norm=0.0, betas=(0.9, 0.99), eps=1e-8):
    """`step` steps were taken before. The elements of the range `decay` decay."""
    begin, end = decay
    case = Case("adamw", name, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=0.1, clip_norm=clip_norm,
                decay_ranges=[begin, end])
    param, m = case.real("param", count_elements), case.real("m", count_elements)
    v = case.real("v", count_elements, scale=0.25, shift=0.5)
    grad = case.real("grad", count_elements, scale=16.0)
    count, lr = case.scalar("count", 5.0), case.scalar("lr", 0.001)
    case.scalar("step", step, "i64")
    if step == 0:  # nothing was gathered yet
        for name_of, used in (("m", m), ("v", v)):
            used.data.zero_()
            next(i for i in case.out["inputs"] if i["name"] == name_of).update(scale=0.0, shift=0.0)
    g = grad.detach() / count
    if clip_norm:
        whole = torch.zeros_like(g).requires_grad_()
        whole.grad = g.clone()
        clip(case, whole, clip_norm)
        g = whole.grad
    parts = [slice(0, begin), slice(begin, end), slice(end, None)]
    made = [param.detach()[s].clone().requires_grad_() for s in parts]
    opt = torch.optim.AdamW([dict(params=[p], weight_decay=0.1 if i == 1 else 0.0) for i, p in enumerate(made)],
                            lr=lr, betas=betas, eps=eps)
    for p, s in zip(made, parts):
        p.grad = g[s].clone()
        opt.state[p] = dict(step=torch.tensor(float(step)), exp_avg=m.detach()[s].clone(),
                            exp_avg_sq=v.detach()[s].clone())
    opt.step()
    state = [opt.state[p] for p in made]
    return case.done(param=torch.cat([p.detach() for p in made]), m=torch.cat([s["exp_avg"] for s in state]),
                     v=torch.cat([s["exp_avg_sq"] for s in state]))


def cases():
    return [
        layer_norm("bias", 3, 5, 7, bias=True),
        layer_norm("no_bias", 5, 13, bias=False, scale=4.0),
        layer_norm("far_mean", 2, 33, bias=True, scale=0.25, shift=64.0),
        layer_norm("one_feature", 3, 1, bias=True),
        rms_norm("plain", 3, 5, 7),
        rms_norm("small", 2, 33, scale=2.0**-10),
        gelu("middle", 3, 19, scale=4.0),
        gelu("tails", 37, scale=16.0),
        softmax("plain", 3, 5, 7, scale=4.0),
        softmax("large", 2, 19, scale=32.0, shift=512.0),
        softmax("one_class", 3, 1, scale=1.0),
        cross_entropy("all_counted", 9, 5, scale=4.0),
        cross_entropy("ignored", 3, 5, 11, scale=4.0, ignore_each=3),
        cross_entropy("none_counted", 3, 5, scale=1.0, ignore_each=1),
        cross_entropy("large", 5, 13, scale=64.0, ignore_each=4),
        rotary("forth", 1, 5, 2, 6),
        rotary("back", 1, 5, 2, 6, inverse=True),
        attention("causal", 2, 5, 2, 3),
        attention("whole", 1, 7, 2, 3, causal=False),
        attention("one_position", 1, 1, 1, 5),
        attention("sharp", 1, 9, 1, 5, scale=4.0),
        attention("rotary", 1, 5, 2, 6, base=10000.0),
        embedding("repeated", 7, 5, 2, 9),
        sgd("plain", 37),
        sgd("clamp", 37, clamp=1.0),
        sgd("clip", 37, clip_norm=1.0),
        adamw("first", 37, step=0, decay=(0, 37)),
        adamw("later", 37, step=9, decay=(5, 23)),
        adamw("clip", 37, step=9, decay=(0, 20), clip_norm=1.0),
    ]


def main():
    made = cases()
    for case in made:
        sizes = [math.prod(x["shape"]) for x in case["inputs"] + case["outputs"]]
        assert max(sizes) < 200, case["name"]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "op_values.json")
    with open(path, "w", encoding="utf-8") as file:
        head = json.dumps(torch.__version__)
        file.write('{"torch": %s, "cases": [\n' % head)
        file.write(",\n".join(json.dumps(case) for case in made))
        file.write("\n]}\n")
    print(len(made), "cases,", os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
